// DataParallel: N ranks, each with the gradient of its own micro batches, end up with the same mean
// gradient, or with their shard of it. It attaches itself to the parameters' leaves and is told
// where backward passes and steps begin and end; it knows no model and no optimizer. The naive form
// (naive.cpp) comes first, to read and to compare with; the bucketed one (reducer.cpp) is what is
// used. Both give the same bits. Read next: naive.cpp.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "dist/comm_times.h"
#include "dist/communicator.h"
#include "dist/config.h"
#include "dist/step_trace.h"

namespace lockstep {

// What a step's exchange found and cost on this rank.
struct GradientReport : CommTimes {
  // 2-norm of the mean gradient over all parameters; not finite if any element is not.
  double norm = 0;
  std::string non_finite;   // the first parameter, in order, with a non-finite gradient; else empty
  int64_t wire_bytes = 0;   // gradient bytes this rank sent to others
  int64_t param_bytes = 0;  // parameter bytes this rank sent to others since the last report
  int64_t host_bytes = 0;   // of both, those that it sent to other hosts
  // Of one pass of the compressed parameters through their codec: bytes before and after.
  int64_t unpacked_bytes = 0, packed_bytes = 0;
};

struct MicroStep {
  int64_t step = 1;   // of the run, from 1
  int64_t index = 0;  // in the step
  int64_t count = 1;  // micro steps of the step
  // A recording writes its gradients (core/recording.h): leaves stay bound as that left them.
  bool replayed = false;
  bool last() const { return index + 1 == count; }
};

// In which order micro batches are added up. same_world: those of a rank one after the other.
// any_world: one balanced tree over the step's micro batches by global index, so that the number of
// ranks changes no bit (ranks and micro steps must be powers of two).
enum class SumOrder { same_world, any_world };

class DataParallel {
 public:
  // The leaves forget it. Waits for what was launched, because peers still count on it.
  virtual ~DataParallel() = default;

  // Before each backward pass of a step: one backward pass per micro step.
  virtual void begin_micro_step(const MicroStep& micro) = 0;

  // After the last backward pass: returns when every gradient() is the sum over ranks and micro
  // steps of the gradients (each already divided by the step's global token count, so this is the
  // mean), and the shards may be written. A parameter that got no gradient counts as zero and is
  // named by unused().
  virtual GradientReport finish() = 0;

  // What this rank updates: the parameters themselves, or with zero_stage >= 1 its runs of cells,
  // named "parameter[first:end]" by element. Matrices stay two-dimensional (1, n), vectors flat.
  virtual const std::vector<NamedTensor>& shards() const = 0;

  // Of the i-th shard: fp32, its shape. Valid from finish() to end_step().
  virtual const Tensor& gradient(size_t i) const = 0;

  // The optimizer has updated the shards (or, not committed, skipped the step): the other ranks get
  // to see them, and what codecs left out this time is kept for the next.
  virtual void end_step(bool committed) = 0;

  // Lossy codecs see every element divided by a power of two near the root of its second moment
  // (core/codecs/powers.h), so that those of a cell are alike to them. `moments`: fp32, one for
  // each shard. Collective, between steps, before momenta are sent; see make_data_parallel.
  virtual void precondition(const std::vector<Tensor>& moments) = 0;

  // The shards were written outside of a step (a checkpoint was read).
  virtual void shards_changed() = 0;

  // Around every use of a unit's parameters: see make_data_parallel.
  virtual void acquire(size_t unit) = 0;
  virtual void release(size_t unit) = 0;

  // What must be saved to resume with the same bits, beside shards and optimizer: residuals of
  // lossy codecs and momenta that are sent. "parameter.residual" and "parameter.rank_momentum" are
  // this rank's own and sum over ranks; the "[first:end].owner_residual" belong to the owner of the
  // shard.
  virtual std::vector<NamedTensor> state() const = 0;

  // Whether anything travels while something is computed, from now on; at first dist.overlap says
  // so. If not, everybody waits for what travels, which tells what each takes alone.
  virtual void set_overlap(bool overlap) = 0;
  // Of the last step, from one end_step() to the next.
  virtual const StepTrace& trace() const = 0;

  // Parameters that got no gradient in the first step, for one warning.
  virtual const std::vector<std::string>& unused() const = 0;
};

// Writes the initial values of the i-th parameter.
using Initialise = std::function<void(size_t i)>;

// `parameters` in the order of their use in forward (a Module's parameters()); unit_of[i] is the
// unit of parameter i, ascending (empty: all are unit 0). With zero_stage 3 a unit's parameters are
// there between acquire() and release() only, which nest; all ranks acquire in the same order. They
// need not be there before: with `initialise`, each has memory only until its shard is taken. With
// `momentum` above 0, what is exchanged after compression.warmup_steps are not gradients but each
// rank's own momentum, m = momentum * m + (1 - momentum) * gradient, of all steps; precondition()
// is due then.
std::unique_ptr<DataParallel> make_data_parallel(
    const DistConfig& config, Communicator& communicator, std::vector<NamedTensor> parameters,
    std::vector<size_t> unit_of = {}, SumOrder order = SumOrder::same_world,
    const Initialise& initialise = {}, double momentum = 0);

}  // namespace lockstep
