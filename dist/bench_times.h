// What the benchmarks of dist/ share: timing something that all ranks do. Read next: bench_comm.h,
// bench_codec.h.
#pragma once

#include <functional>

#include "dist/communicator.h"

namespace lockstep {

// Of the per-iteration times of the slowest rank.
struct BenchTimes {
  double median_us = 0, min_us = 0, max_us = 0;
};

// Collective: `run` is called on every rank, first `warmup` times without being timed, and always
// after a barrier. It returns the seconds it took here.
BenchTimes time_slowest_rank(Communicator& communicator, int warmup, int iterations,
                             const std::function<double()>& run);

double seconds_of(const std::function<void()>& run);

}  // namespace lockstep
