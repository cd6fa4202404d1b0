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
  for (int i = 0; i < 19; ++i) times.add(step);
  EXPECT_EQ(times.warning(four_ranks()), "") << "too few to judge";
  times.add(std::vector<RankTime>{{200, 0}, {100, 0}, {150, 0}, {100, 0}});
  EXPECT_EQ(
      times.warning(four_ranks()),
      "rank 2 on host b keeps the others waiting: 150 ms of computing and 0 ms of waiting for "
      "data per step are 1.50 x what the others take; it was the last in 19 of 20 steps; look "
      "at other programs on its cores and at its processor's clock");
  for (int i = 0; i < 20; ++i) times.add(step);
  EXPECT_EQ(times.warning(four_ranks()), "") << "that was said";
}

TEST(RankTimes, TellsAStarvedOneFromASlowOne) {
  RankTimes times;
  for (int i = 0; i < 20; ++i)
    times.add(std::vector<RankTime>{{100, 0}, {100, 400}, {100, 0}, {100, 0}});
  EXPECT_EQ(times.warning(four_ranks()),
            "rank 1 on host a keeps the others waiting: 100 ms of computing and 400 ms of waiting "
            "for data per step are 5.00 x what the others take; it was the last in 20 of 20 steps; "
            "look at its disk and data.workers");
}

// On a busy machine now this rank is the last and now that one, by half: 28 warnings in 1000 steps.
TEST(RankTimes, NobodyIsSlowWhoIsNotSteadily) {
  RankTimes times;
  const Topology where = four_ranks();
  uint32_t random = 1;
  for (int i = 0; i < 1000; ++i) {
    std::vector<RankTime> step(2, {100, 0});
    random = random * 1664525 + 1013904223;
    step[random >> 31].compute_ms = 150;
    times.add(step);
    EXPECT_EQ(times.warning(where), "") << i;
  }
}

TEST(RankTimes, MediansAreNotMovedByOneStep) {
  RankTimes times;
  times.add(std::vector<RankTime>{{10, 1}, {20, 0}});
  times.add(std::vector<RankTime>{{12, 3}, {22, 0}});
  times.add(std::vector<RankTime>{{11, 2}, {5000, 0}});
  EXPECT_EQ(times.medians()[0].compute_ms, 11);
  EXPECT_EQ(times.medians()[0].data_ms, 2);
  EXPECT_EQ(times.medians()[1].compute_ms, 22);
}

}  // namespace
}  // namespace lockstep
