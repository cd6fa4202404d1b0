// Forward and backward of micro-batches, recorded once (core/recording.h) and replayed from then
// on: `train.cuda_graph`. Tokens go to fixed memory, and what is computed has an allocator of its
// own, because its addresses stay in the recording. Read next: recorded_steps.cpp.
#pragma once

#include <map>
#include <memory>

#include "core/allocator.h"
#include "core/recording.h"
#include "data/loader.h"
#include "dist/data_parallel.h"

namespace lockstep {

class RecordedSteps {
 public:
  // From tokens and targets, [rows, seq_len] i32, to the loss, with gradients on the way.
  using Compute = std::function<Tensor(const Tensor& tokens, const Tensor& targets)>;

  RecordedSteps(Recorder& recorder, int64_t rows, int64_t seq_len);

  // Whether run() of this micro-step will replay: the leaves then keep the gradients they are bound
  // to.
  bool replays(const MicroStep& micro) const;
  // The loss of the batch, whose ids the caller has checked. `compute` must always be the same.
  Tensor run(const MicroStep& micro, const Batch& batch, const Compute& compute);

  // Of what is computed, beside the rank's own allocator.
  MemoryStats memory() const { return memory_.stats(); }

 private:
  // Micro-steps differ in whether gradients are there to add to, and whether they are sent after.
  struct Kind {
    int runs = 0;
    std::unique_ptr<Recording> recording;
  };
  using Key = std::pair<bool, bool>;
  static Key key(const MicroStep& micro) { return {micro.index > 0, micro.last()}; }
  void record(Kind& kind, const std::function<void()>& body);

  Recorder& recorder_;
  Allocator memory_;
  Tensor tokens_, targets_, loss_;
  std::map<Key, Kind> kinds_;
};

}  // namespace lockstep
