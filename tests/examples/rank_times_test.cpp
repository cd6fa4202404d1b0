// Which rank is named as the one that the others wait for, and when.
#include "examples/rank_times.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

Topology four_ranks() {
  Topology where;
  where.size = 4;
  where.host_name = {"a", "a", "b", "b"};
  return where;
}

TEST(SlowestRank, IsComparedWithTheMeanOfTheOthers) {
  const std::vector<RankTime> times = {{80, 0}, {100, 20}, {170, 10}, {100, 0}};
  EXPECT_EQ(slowest_rank(times).rank, 2);
  EXPECT_DOUBLE_EQ(slowest_rank(times).imbalance, 180 / 100.0);
}

TEST(SlowestRank, OneAloneIsSlowerThanNobody) {
  const std::vector<RankTime> times = {{80, 5}};
  EXPECT_EQ(slowest_rank(times).rank, 0);
  EXPECT_EQ(slowest_rank(times).imbalance, 1);
}

TEST(RankTimes, NamesTheSlowOneOnce) {
  RankTimes times;
  const std::vector<RankTime> step = {{100, 0}, {100, 0}, {150, 0}, {100, 0}};
  for (int i = 0; i < 4; ++i) times.add(step);
  EXPECT_EQ(times.warning(four_ranks()), "") << "four steps prove nothing";
  times.add(step);
  EXPECT_EQ(
      times.warning(four_ranks()),
      "rank 2 on host b keeps the others waiting: 150 ms of computing and 0 ms of waiting for "
      "data per step are 1.50 x what the others take (mean of 5 steps); look at other "
      "programs on its host and at its processor's clock");
  for (int i = 0; i < 5; ++i) times.add(step);
  EXPECT_EQ(times.warning(four_ranks()), "") << "that was said";
}

TEST(RankTimes, TellsAStarvedOneFromASlowOne) {
  RankTimes times;
  for (int i = 0; i < 5; ++i)
    times.add(std::vector<RankTime>{{100, 0}, {100, 400}, {100, 0}, {100, 0}});
  EXPECT_EQ(times.warning(four_ranks()),
            "rank 1 on host a keeps the others waiting: 100 ms of computing and 400 ms of waiting "
            "for data per step are 5.00 x what the others take (mean of 5 steps); look at its disk "
            "and data.workers");
}

TEST(RankTimes, SingleSlowStepsAreNobodysFault) {
  RankTimes times;
  for (int i = 0; i < 8; ++i) {
    std::vector<RankTime> step(4, {100, 0});
    step[i % 4].compute_ms = 130;
    times.add(step);
  }
  EXPECT_EQ(times.warning(four_ranks()), "");
}

}  // namespace
}  // namespace lockstep
