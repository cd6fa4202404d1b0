// What a step takes and costs on this rank, noted while it runs, so that the step itself
// (replica.cpp) reads as the algorithm it is. Nothing follows from it but figures. Read next:
// metrics.h, where they are kept.
#pragma once

#include <cstdint>

#include "core/allocator.h"
#include "data/loader.h"
#include "dist/data_parallel.h"
#include "examples/metrics.h"
#include "examples/rank_times.h"
#include "examples/stopwatch.h"

namespace lockstep {

// Begins with the step. Its other moments are told in this order, once each.
class StepAccount {
 public:
  StepAccount(const Loader& loader, const MemoryStats& memory);

  // This rank's gradients are complete, and so are the sums. Returns what its own part of that
  // took.
  RankTime gradients_complete(const GradientReport& report);
  // All ranks have told each other of their losses.
  void losses_known();
  // The end: times, bytes and memory; the other metrics are left as they are at first.
  StepMetrics costs(const GradientReport& report, const MemoryStats& memory) const;

 private:
  const Loader& loader_;
  const double waited_before_s_;
  const int64_t allocations_before_;
  const Stopwatch step_;
  Stopwatch sync_;
  double sync_ms_ = 0;
  RankTime own_;
};

}  // namespace lockstep
