// Schedules and clipping against closed forms. Read next: optimizer_test.cpp.
#include "optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

namespace lockstep {
namespace {

OptimConfig config(const char* schedule) {
  OptimConfig c;
  c.schedule = schedule;
  c.lr = 0.5;
  c.warmup_steps = 10;
  c.min_lr_ratio = 0.2;
  c.lr_scaling = "none";
  return c;
}

TEST(Schedule, WarmsUpLinearlyAndReachesThePeak) {
  for (const char* s : {"cosine", "linear", "constant", "wsd"}) {
    EXPECT_DOUBLE_EQ(learning_rate(config(s), 1, 110, 1), 0.05) << s;
    EXPECT_DOUBLE_EQ(learning_rate(config(s), 10, 110, 1), 0.5) << s;
  }
}

TEST(Schedule, EndsAtTheRatioAndIsRightHalfway) {
  EXPECT_DOUBLE_EQ(learning_rate(config("cosine"), 110, 110, 1), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(config("cosine"), 60, 110, 1), 0.5 * (0.2 + 0.8 * 0.5));
  EXPECT_NEAR(learning_rate(config("cosine"), 35, 110, 1),
              0.5 * (0.2 + 0.8 * 0.5 * (1 + std::cos(std::numbers::pi / 4))), 1e-15);
  EXPECT_DOUBLE_EQ(learning_rate(config("linear"), 110, 110, 1), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(config("linear"), 60, 110, 1), 0.5 * 0.6);
  EXPECT_DOUBLE_EQ(learning_rate(config("constant"), 110, 110, 1), 0.5);
}

TEST(Schedule, WsdStaysUpThenFalls) {
  OptimConfig c = config("wsd");
  c.wsd_decay_share = 0.25;
  EXPECT_DOUBLE_EQ(learning_rate(c, 85, 110, 1), 0.5);  // 75 % of the 100 steps after warm-up
  EXPECT_DOUBLE_EQ(learning_rate(c, 110, 110, 1), 0.1);
  EXPECT_NEAR(learning_rate(c, 97, 110, 1), 0.5 * (1 - 0.8 * 12 / 25.0), 1e-15);
}

TEST(Schedule, ARunShorterThanItsWarmupNeverReachesThePeak) {
  EXPECT_DOUBLE_EQ(learning_rate(config("cosine"), 4, 4, 1), 0.2);
}

TEST(LrScaling, FourTimesTheBatch) {
  OptimConfig c = config("constant");
  c.base_batch_tokens = 1000;
  EXPECT_DOUBLE_EQ(lr_scale(c, 4000), 1.0);
  c.lr_scaling = "linear";
  EXPECT_DOUBLE_EQ(lr_scale(c, 4000), 4.0);
  EXPECT_DOUBLE_EQ(learning_rate(c, 50, 100, 4000), 2.0);
  c.lr_scaling = "sqrt";
  EXPECT_DOUBLE_EQ(lr_scale(c, 4000), 2.0);
  EXPECT_DOUBLE_EQ(lr_scale(c, 250), 0.5);
}

TEST(Clip, FactorIsTorchs) {
  EXPECT_EQ(clip_factor(3.0, 0.0), 1.0f);
  EXPECT_EQ(clip_factor(0.5, 1.0), 1.0f);
  EXPECT_FLOAT_EQ(clip_factor(4.0, 1.0), static_cast<float>(1.0 / 4.000001));
}

TEST(TreeSum, PairsNeighbours) {
  EXPECT_EQ(tree_sum({}), 0.0);
  // (1e16 + 1) loses the one, (1 + 1) keeps both: the shape of the tree shows in the result.
  const double v[] = {1e16, 1.0, 1.0, 1.0, -1e16};
  EXPECT_EQ(tree_sum(v), ((1e16 + 1.0) + (1.0 + 1.0)) + -1e16);
}

}  // namespace
}  // namespace lockstep
