// DataParallel: N ranks, each with the gradient of its own micro batches, end up with the same mean
// gradient. It attaches itself to the parameters' leaves and is told where backward passes and
// steps begin and end; it knows no model and no optimizer. The naive form comes first, to read and
// to compare with; the bucketed one is what is used. Both give the same bits. Read next:
// data_parallel.cpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "dist/comm_times.h"
#include "dist/communicator.h"
#include "dist/config.h"

namespace lockstep {

// What a step's exchange found and cost on this rank.
struct GradientReport : CommTimes {
  // 2-norm of the mean gradient over all parameters; not finite if any element is not.
  double norm = 0;
  std::string non_finite;  // the first parameter, in order, with a non-finite gradient; else empty
  int64_t wire_bytes = 0;  // gradient bytes this rank sent to others
};

class DataParallel {
 public:
  // The leaves forget it. Waits for what was launched, because peers still count on it.
  virtual ~DataParallel() = default;

  // Before each backward pass of a step, micro = 0, 1, .., count - 1. Gradients of the micro steps
  // are summed locally; communication belongs to the last, so it has one backward pass at most.
  virtual void begin_micro_step(int64_t micro, int64_t count) = 0;

  // After the last backward pass: returns when every gradient() is the sum over ranks of the
  // gradients (each already divided by the step's global token count, so this is the mean). A
  // parameter that got no gradient counts as zero and is named once in the log line returned by
  // unused().
  virtual GradientReport finish() = 0;

  // Of the i-th parameter given at construction: fp32, its shape. Valid from finish() to release().
  virtual const Tensor& gradient(size_t i) const = 0;

  // The optimizer has read the gradients: their memory may be written again.
  virtual void release() = 0;

  // Parameters that got no gradient in the first step, for one warning.
  virtual const std::vector<std::string>& unused() const = 0;
};

// `parameters` in the order of their use in forward (a Module's parameters()).
std::unique_ptr<DataParallel> make_data_parallel(const DistConfig& config,
                                                 Communicator& communicator,
                                                 std::vector<NamedTensor> parameters);

}  // namespace lockstep
