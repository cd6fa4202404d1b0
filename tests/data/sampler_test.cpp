// The order of samples: permutations are exact, epochs differ, validation covers every token.
#include "data/sampler.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "tests/data/data_test_util.h"

namespace lockstep {
namespace {

std::vector<int64_t> permutation(int64_t n, uint64_t key) {
  std::vector<int64_t> values(n);
  for (int64_t i = 0; i < n; ++i) values[i] = shuffled(i, n, key);
  return values;
}

bool is_permutation_of_all(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i] != static_cast<int64_t>(i)) return false;
  return true;
}

TEST(Shuffled, IsOneToOneForEverySmallSize) {
  for (int64_t n = 1; n <= 200; ++n)
    for (uint64_t key = 0; key < 5; ++key)
      EXPECT_TRUE(is_permutation_of_all(permutation(n, key))) << n << " " << key;
}

TEST(Shuffled, IsOneToOneForLargeSizes) {
  for (int64_t n : {65'536, 99'991}) EXPECT_TRUE(is_permutation_of_all(permutation(n, 42))) << n;
}

TEST(Shuffled, StaysInRangeForHugeSizes) {
  const int64_t n = (int64_t{1} << 40) + 12345;
  std::set<int64_t> seen;
  for (int64_t i = n - 1000; i < n; ++i) {
    const int64_t value = shuffled(i, n, 7);
    EXPECT_GE(value, 0);
    EXPECT_LT(value, n);
    EXPECT_TRUE(seen.insert(value).second);
  }
  EXPECT_LT(*seen.begin(), n / 10);
  EXPECT_GT(*seen.rbegin(), n - n / 10);
}

TEST(Shuffled, ReachesEveryOrderAboutEquallyOften) {
  std::map<std::vector<int64_t>, int> seen;
  const int keys = 24'000;
  for (int key = 0; key < keys; ++key) ++seen[permutation(4, key)];
  ASSERT_EQ(seen.size(), 24u);
  double chi2 = 0;
  for (const auto& [order, n] : seen) chi2 += (n - 1000.0) * (n - 1000.0) / 1000.0;
  EXPECT_LT(chi2, 23 + 5 * std::sqrt(2 * 23.0));  // mean + 5 standard deviations of chi2(23)
}

// Neighbours are as far apart as in a random order: their mean distance is n/3.
TEST(Shuffled, SeparatesNeighbours) {
  const int64_t n = 10'000;
  const auto order = permutation(n, 5);
  double distance = 0;
  for (int64_t i = 1; i < n; ++i)
    distance += std::abs(static_cast<double>(order[i] - order[i - 1]));
  // The variance of one distance is n^2/18, so 5 standard deviations of the mean are 0.012 n.
  EXPECT_NEAR(distance / (n - 1) / n, 1.0 / 3, 0.012);
}

TEST(TrainSampler, AnEpochIsEveryWindowOnceAndStaysInsideTheData) {
  for (int64_t tokens : {9, 16, 17, 18, 24, 25, 100, 1001}) {
    const TrainSampler sampler("data.train", tokens, 8, 1);
    const int64_t n = sampler.epoch_samples();
    for (int64_t epoch = 0; epoch < 20; ++epoch) {
      std::vector<int64_t> starts;
      for (int64_t i = 0; i < n; ++i) {
        const TokenWindow window = sampler.window(epoch * n + i);
        EXPECT_EQ(window.length, 8);
        EXPECT_GE(window.start, 0);
        EXPECT_LE(window.start + 8 + 1, tokens);
        starts.push_back(window.start);
      }
      std::sort(starts.begin(), starts.end());
      for (int64_t i = 1; i < n; ++i) EXPECT_EQ(starts[i], starts[i - 1] + 8);
    }
    EXPECT_LT(tokens - 1 - n * 8, 16);  // what an epoch leaves out
  }
}

TEST(TrainSampler, EpochsDifferInOrderAndOffset) {
  const TrainSampler sampler("data.train", 10'001, 8, 1);
  const int64_t n = sampler.epoch_samples();
  std::set<int64_t> offsets;
  for (int64_t epoch = 0; epoch < 200; ++epoch) offsets.insert(sampler.window(epoch * n).start % 8);
  EXPECT_EQ(offsets.size(), 8u);
  int equal = 0;
  for (int64_t i = 0; i < n; ++i)
    equal += sampler.window(i).start / 8 == sampler.window(n + i).start / 8;
  EXPECT_LT(equal, 12);  // a random pair of orders has Poisson(1) equal places
}

TEST(TrainSampler, DependsOnTheSeedAlone) {
  const TrainSampler a("data.train", 10'001, 8, 1), b("data.train", 10'001, 8, 1),
      c("data.train", 10'001, 8, 2);
  int equal = 0;
  for (int64_t sample : {0, 1, 999, 123'456}) {
    EXPECT_EQ(a.window(sample).start, b.window(sample).start);
    equal += a.window(sample).start == c.window(sample).start;
  }
  EXPECT_LT(equal, 4);
}

// From a Python program written from the papers. A change of order would break every resume.
TEST(TrainSampler, GoldenStarts) {
  const TrainSampler sampler("data.train", 10'001, 8, 1);
  std::vector<int64_t> starts;
  for (int64_t sample : {0, 1, 2, 3, 1249, 1250}) starts.push_back(sampler.window(sample).start);
  EXPECT_EQ(starts, (std::vector<int64_t>{3851, 7859, 6339, 9067, 2855, 2663}));
}

TEST(TrainSampler, TextShorterThanAWindow) {
  TrainSampler("data.train", 257, 256, 1);
  expect_error(Exit::data,
               {"[data.train]", "has 256 tokens", "seq_len 256 needs 257", "at most 255"},
               [] { TrainSampler("data.train", 256, 256, 1); });
}

TEST(ValidationSampler, EveryTokenButTheFirstIsATargetOnce) {
  for (int64_t tokens = 2; tokens < 40; ++tokens) {
    const ValidationSampler sampler("data.val", tokens, 8);
    int64_t next = 0;
    for (int64_t i = 0; i < sampler.samples(); ++i) {
      const TokenWindow window = sampler.window(i);
      EXPECT_EQ(window.start, next);
      EXPECT_GT(window.length, 0);
      EXPECT_LE(window.length, 8);
      next += window.length;
    }
    EXPECT_EQ(next, tokens - 1);
    EXPECT_EQ(sampler.window(sampler.samples()).length, 0);
  }
}

TEST(ValidationSampler, LimitAndTooLittleData) {
  const ValidationSampler sampler("data.val", 1000, 8, 5);
  EXPECT_EQ(sampler.samples(), 5);
  EXPECT_EQ(sampler.window(4).length, 8);
  EXPECT_EQ(sampler.window(5).length, 0);
  EXPECT_EQ(ValidationSampler("data.val", 17, 8, 5).samples(), 2);
  expect_error(Exit::data, {"[data.val]", "1 tokens", "at least 2"},
               [] { ValidationSampler("data.val", 1, 8); });
}

}  // namespace
}  // namespace lockstep
