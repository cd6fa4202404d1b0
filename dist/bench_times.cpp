// Between barriers, so that the slowest rank counts. Read next: bench_comm.h.
#include "dist/bench_times.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "core/median.h"

namespace lockstep {

BenchTimes time_slowest_rank(Communicator& communicator, int warmup, int iterations,
                             const std::function<double()>& run) {
  std::vector<double> times;
  for (int i = -warmup; i < iterations; ++i) {
    communicator.barrier();
    const double seconds = run();
    if (i >= 0) times.push_back(seconds * 1e6);
  }
  for (const auto& theirs : gather_values(communicator, times)) {
    for (size_t i = 0; i < times.size(); ++i) times[i] = std::max(times[i], theirs[i]);
  }
  const auto [least, most] = std::ranges::minmax(times);
  return {median(times), least, most};
}

double seconds_of(const std::function<void()>& run) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  run();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace lockstep
