// The plan of buckets and parts, against the rules that buckets.h states.
#include "dist/buckets.h"

#include <gtest/gtest.h>

#include <random>

#include "core/backend.h"

namespace lockstep {
namespace {

std::vector<NamedTensor> parameters_of(const std::vector<int64_t>& sizes) {
  std::vector<NamedTensor> parameters;
  for (int64_t size : sizes)
    parameters.push_back({fmt::format("p{}", parameters.size()), Tensor::empty({size})});
  return parameters;
}

int64_t element_bytes(int64_t elements) {
  return elements * static_cast<int64_t>(sizeof(float));
}

// Members in order, without overlap, aligned to cache lines, inside the bucket.
void expect_members_fit(const Bucket& bucket, const std::vector<int64_t>& sizes) {
  int64_t end = 0;
  for (const auto& [parameter, offset] : bucket.members) {
    EXPECT_GE(offset, end);
    EXPECT_LT(offset - end, 16) << "padding before parameter " << parameter;
    EXPECT_EQ(offset % 16, 0);
    end = offset + sizes[parameter];
  }
  EXPECT_LE(end, bucket.elements());
  EXPECT_LT(bucket.elements() - end, 16);
}

// Every cell of every member in exactly one part, in order, where the member lies.
void expect_cells_once(const Bucket& bucket, const std::vector<int64_t>& sizes, int ranks) {
  ASSERT_EQ(std::ssize(bucket.edges), ranks + 1);
  ASSERT_EQ(std::ssize(bucket.parts), ranks);
  EXPECT_EQ(bucket.edges.front(), 0);
  size_t member = 0;
  int64_t cell = 0;  // the next one expected, of the member
  for (int r = 0; r < ranks; ++r) {
    ASSERT_LE(bucket.edges[r], bucket.edges[r + 1]);
    for (const CellRun& run : bucket.parts[r]) {
      ASSERT_LT(member, bucket.members.size());
      const auto [parameter, offset] = bucket.members[member];
      EXPECT_EQ(run.parameter, parameter);
      EXPECT_EQ(run.cell, cell);
      EXPECT_GT(run.cells, 0);
      EXPECT_EQ(run.offset, offset + cell * cell_size);
      EXPECT_EQ(run.elements, std::min(run.cells * cell_size, sizes[parameter] - cell * cell_size));
      EXPECT_GE(run.offset, bucket.edges[r]);
      EXPECT_LE(run.offset + run.elements, bucket.edges[r + 1]);
      cell += run.cells;
      if (cell * cell_size >= sizes[parameter]) {
        ++member;
        cell = 0;
      }
    }
  }
  EXPECT_EQ(member, bucket.members.size());
}

// A part is larger than its share by less than a cell and the padding of the bucket.
void expect_even_parts(const Bucket& bucket, int ranks) {
  for (int r = 0; r < ranks; ++r)
    EXPECT_LT(bucket.edges[r + 1] - bucket.edges[r], bucket.elements() / ranks + cell_size + 32);
}

std::vector<Bucket> checked_plan(const std::vector<int64_t>& sizes, int64_t bytes, int ranks) {
  SCOPED_TRACE(fmt::format("{} parameters, {} bytes, {} ranks", sizes.size(), bytes, ranks));
  const std::vector<Bucket> buckets = plan_buckets(parameters_of(sizes), bytes, ranks);
  std::vector<size_t> order;
  for (const Bucket& bucket : buckets) {
    EXPECT_FALSE(bucket.members.empty());
    if (bucket.members.size() > 1) {
      EXPECT_LE(element_bytes(bucket.elements()), bytes);
    }
    for (const auto& member : bucket.members) order.push_back(member.parameter);
    expect_members_fit(bucket, sizes);
    expect_cells_once(bucket, sizes, ranks);
    expect_even_parts(bucket, ranks);
  }
  std::vector<size_t> expected;
  for (size_t i = sizes.size(); i-- > 0;)
    if (sizes[i] > 0) expected.push_back(i);
  EXPECT_EQ(order, expected) << "reverse order of registration, each once";
  return buckets;
}

constexpr int64_t mib = 1 << 20;

TEST(PlanBuckets, OneParameterOfEverySizeAroundACell) {
  for (int ranks = 1; ranks <= 5; ++ranks)
    for (int64_t size : {1, 15, 16, 17, 4095, 4096, 4097, 8192, 8193, 50000})
      EXPECT_EQ(checked_plan({size}, mib, ranks).size(), 1u);
}

TEST(PlanBuckets, MoreRanksThanCellsLeaveEmptyParts) {
  const auto buckets = checked_plan({4097}, mib, 5);
  int empty = 0;
  for (int r = 0; r < 5; ++r) empty += buckets[0].parts[r].empty();
  EXPECT_EQ(empty, 3);
}

TEST(PlanBuckets, PartsAreCutAtCellsCountedFromTheParameter) {
  // Padded to 5008 + 9008: cells start at 0, 4096, 5008, 9104, 13200; the half is 7008.
  const auto buckets = checked_plan({9000, 5000}, mib, 2);
  EXPECT_EQ(buckets[0].edges, (std::vector<int64_t>{0, 9104, 14016}));
}

TEST(PlanBuckets, ClosedBeforeTheLimitAndNeverSplitAParameter) {
  // In order of arrival: 5 + 3 fill a bucket of 8 KiB, 9 is too large for any, 4 has its own.
  const auto buckets = checked_plan({1024, 9 * 256, 3 * 256, 5 * 256}, 8 * 1024, 2);
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets[0].members.size(), 2u);
  EXPECT_EQ(element_bytes(buckets[1].elements()), 9 * 1024);
  EXPECT_EQ(buckets[2].members[0].parameter, 0u);
}

TEST(PlanBuckets, WhatArrivesLastIsSmall) {
  const int64_t quarter = mib / 16;  // elements: a quarter of a MiB
  // The first four fill 1 MiB and travel alone, although everything would fit in 100 MiB.
  auto buckets =
      checked_plan({quarter, quarter, quarter, quarter, quarter, 4 * quarter}, 100 * mib, 3);
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(buckets[1].members.size(), 4u);
  // A large first parameter travels with what is small and comes at the same time.
  buckets = checked_plan({8 * quarter, quarter, quarter, 4 * quarter}, 100 * mib, 3);
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(buckets[1].members.size(), 3u);
  // All fits in 1 MiB: nothing to split.
  EXPECT_EQ(checked_plan({quarter, quarter, quarter}, 100 * mib, 3).size(), 1u);
}

TEST(PlanBuckets, WhatArrivesLastIsSmallBesideEmptyParameters) {
  const int64_t quarter = mib / 16;
  auto buckets = checked_plan({quarter, 0, 8 * quarter}, 100 * mib, 2);
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(buckets[1].members[0].parameter, 0u);
  buckets = checked_plan({0, 8 * quarter, 8 * quarter}, 100 * mib, 2);
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(buckets[1].members[0].parameter, 1u);
}

TEST(PlanBuckets, NothingToSend) {
  for (int ranks = 1; ranks <= 3; ++ranks) {
    EXPECT_TRUE(checked_plan({}, mib, ranks).empty());
    EXPECT_TRUE(checked_plan({0}, mib, ranks).empty());
    EXPECT_EQ(checked_plan({0, 3, 0, 5000, 0}, mib, ranks).size(), 1u);
  }
}

TEST(PlanBuckets, RulesHoldForRandomParameters) {
  std::minstd_rand random(1);
  const std::vector<int64_t> limits = {1, 1000, 30'000, 200'000, 25 * mib};
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<int64_t> sizes(random() % 12);
    for (int64_t& size : sizes) {
      const int64_t bound[] = {2, 40, 5000, 60'000};
      size = random() % bound[random() % 4];
    }
    checked_plan(sizes, limits[random() % limits.size()], 1 + random() % 5);
  }
}

TEST(PlanBuckets, DependsOnShapesAlone) {
  const std::vector<int64_t> sizes = {300, 70'000, 5, 12'345};
  const auto a = checked_plan(sizes, 40'000, 3), b = checked_plan(sizes, 40'000, 3);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].edges, b[i].edges);
}

}  // namespace
}  // namespace lockstep
