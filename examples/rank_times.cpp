// Who is slow: by medians, and by counting who was last. Read next: trainer_report.cpp.
#include "examples/rank_times.h"

#include <algorithm>
#include <utility>

#include "core/median.h"

namespace lockstep {

namespace {

constexpr size_t kEnoughSteps = 20;
constexpr double kMostSteps = 0.9, kWorthAWord = 1.1;

}  // namespace

SlowestRank slowest_rank(std::span<const RankTime> by_rank) {
  double sum = 0;
  for (const RankTime& time : by_rank) sum += time.ms();
  const auto slowest = std::ranges::max_element(by_rank, {}, &RankTime::ms);
  const double others = (sum - slowest->ms()) / static_cast<double>(by_rank.size() - 1);
  return {static_cast<int>(slowest - by_rank.begin()),
          by_rank.size() > 1 && others > 0 ? slowest->ms() / others : 1};
}

void RankTimes::add(std::span<const RankTime> by_rank) {
  steps_.emplace_back(by_rank.begin(), by_rank.end());
}

std::vector<RankTime> RankTimes::medians() const {
  std::vector<RankTime> medians;
  for (size_t r = 0; r < steps_[0].size(); ++r) {
    std::vector<double> compute, data;
    for (const auto& by_rank : steps_) {
      compute.push_back(by_rank[r].compute_ms);
      data.push_back(by_rank[r].data_ms);
    }
    medians.push_back({median(std::move(compute)), median(std::move(data))});
  }
  return medians;
}

std::string RankTimes::warning(const Topology& where) {
  if (steps_.size() < kEnoughSteps) return {};
  const std::vector<RankTime> medians = this->medians();
  const SlowestRank slowest = slowest_rank(medians);
  const auto last = std::ranges::count_if(steps_, [&](const std::vector<RankTime>& by_rank) {
    return slowest_rank(by_rank).rank == slowest.rank;
  });
  const auto steps = static_cast<double>(steps_.size());
  steps_.clear();
  if (slowest.imbalance < kWorthAWord || static_cast<double>(last) < kMostSteps * steps) return {};
  if (!named_.insert(slowest.rank).second) return {};
  const RankTime& its = medians[slowest.rank];
  return fmt::format(
      "{} keeps the others waiting: {:.0f} ms of computing and {:.0f} ms of waiting for data per "
      "step are {:.2f} x what the others take; it was the last in {} of {:.0f} steps; look at {}",
      where.describe(slowest.rank), its.compute_ms, its.data_ms, slowest.imbalance, last, steps,
      its.data_ms > its.ms() / 2 ? "its disk and data.workers"
                                 : "other programs on its cores and at its processor's clock");
}

}  // namespace lockstep
