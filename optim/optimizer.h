// Optimizers: state over flat fp32 memory, one fused kernel per parameter.
// They take named tensors, or parts of them (a shard), never a Module; gradients are handed in,
// since only the gradient exchange knows where the mean gradient lies. Read next: schedule.h.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/backend.h"
#include "optim/config.h"

namespace lockstep {

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Updates parameter `i` of those given at construction from its mean gradient (fp32, same number
  // of elements). Changes nothing if scalars.skip is set.
  virtual void step(size_t i, const Tensor& grad, const StepScalars& scalars) = 0;

  // Fills in what the optimizer needs of the scalars of step t, which counts from 1.
  virtual void prepare(StepScalars& scalars, int64_t t) const = 0;

  // The second moments, one for each parameter; none if the optimizer has none.
  virtual std::vector<Tensor> second_moments() const { return {}; }

  // Everything that must be saved to resume with the same bits: "<parameter>.exp_avg" and so on,
  // and the fp32 masters of bf16 parameters as "<parameter>.master".
  virtual std::vector<NamedTensor> state() const = 0;
};

// `parameters` are flat or shaped, fp32 or bf16; weight decay acts on those with two or more
// dimensions. `variance_steps`: the first steps of the run, in which onebit_adam's second moment
// moves; the others know no such phase.
std::unique_ptr<Optimizer> make_optimizer(const OptimConfig& config,
                                          std::vector<NamedTensor> parameters,
                                          int64_t variance_steps = 0);

// What state() holds per element of a parameter of this type.
double state_bytes_per_element(const OptimConfig& config, DType dtype);

}  // namespace lockstep
