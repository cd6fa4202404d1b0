#include "dist/bench_times.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <vector>

namespace lockstep {

namespace {

template <class T>
std::vector<std::vector<T>> gather_values(Communicator& communicator, const std::vector<T>& mine) {
  std::vector<std::vector<T>> all;
  for (const auto& bytes : communicator.all_gather_bytes(std::as_bytes(std::span(mine)))) {
    all.emplace_back(bytes.size() / sizeof(T));
    std::memcpy(all.back().data(), bytes.data(), bytes.size());
  }
  return all;
}

}  // namespace

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
  std::sort(times.begin(), times.end());
  const double median = (times[times.size() / 2] + times[(times.size() - 1) / 2]) / 2;
  return {median, times.front(), times.back()};
}

double seconds_of(const std::function<void()>& run) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  run();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int64_t sum_over_ranks(Communicator& communicator, int64_t mine) {
  int64_t total = 0;
  for (const auto& theirs : gather_values<int64_t>(communicator, {mine})) total += theirs[0];
  return total;
}

int64_t max_over_ranks(Communicator& communicator, int64_t mine) {
  int64_t most = mine;
  for (const auto& theirs : gather_values<int64_t>(communicator, {mine}))
    most = std::max(most, theirs[0]);
  return most;
}

}  // namespace lockstep
