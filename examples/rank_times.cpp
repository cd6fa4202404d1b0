#include "examples/rank_times.h"

#include <algorithm>
#include <utility>

namespace lockstep {

namespace {

constexpr int64_t kFewSteps = 5;
constexpr double kWorthAWord = 1.1;

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
  sums_.resize(by_rank.size());
  for (size_t r = 0; r < by_rank.size(); ++r) {
    sums_[r].compute_ms += by_rank[r].compute_ms;
    sums_[r].data_ms += by_rank[r].data_ms;
  }
  ++steps_;
}

std::vector<RankTime> RankTimes::means() const {
  std::vector<RankTime> means;
  const auto steps = static_cast<double>(steps_);
  for (const RankTime& sum : sums_) means.push_back({sum.compute_ms / steps, sum.data_ms / steps});
  return means;
}

std::string RankTimes::warning(const Topology& where) {
  if (steps_ < kFewSteps) return {};
  const std::vector<RankTime> means = this->means();
  sums_.clear();
  const int64_t steps = std::exchange(steps_, 0);
  const auto [rank, imbalance] = slowest_rank(means);
  if (imbalance < kWorthAWord || rank == named_) return {};
  named_ = rank;
  const RankTime& its = means[rank];
  return fmt::format(
      "{} keeps the others waiting: {:.0f} ms of computing and {:.0f} ms of waiting for data per "
      "step are {:.2f} x what the others take (mean of {} steps); look at {}",
      where.describe(rank), its.compute_ms, its.data_ms, imbalance, steps,
      its.data_ms > its.ms() / 2 ? "its disk and data.workers"
                                 : "other programs on its host and at its processor's clock");
}

}  // namespace lockstep
