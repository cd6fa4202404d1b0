// Differences between ranks are found, and named.
#include "dist/verify.h"

#include <gtest/gtest.h>

#include "tests/core/expect_error.h"
#include "tests/dist/worlds.h"

namespace lockstep {
namespace {

const LocalWorlds few = {{2, 3}, {0, 1}};

std::vector<NamedTensor> two_weights() {
  return {{"wte", Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6}, {2, 3})},
          {"bias", Tensor::from(std::vector<bf16>{bf16{0x3f80}, bf16{0x4000}}, {2})}};
}

TEST(CheckSame, EqualRanksPass) {
  on_worlds([](Communicator& c) {
    check_same(c, "config", "");
    check_same(c, "config", "a = 1\nb = 2\n");
    check_same(c, "weights", describe_with_hashes(two_weights()));
  });
}

// The error of `lines` (by rank), with the topology to fill in the expected text.
void expect_difference(const std::function<std::string(int)>& lines, int rank,
                       const std::string& theirs, const std::string& ours) {
  on_worlds(
      [&](Communicator& c) {
        const Topology& t = c.topology();
        if (rank >= t.size) return;
        const std::string expected =
            fmt::format("[config] {} has \"{}\" where {} has \"{}\"; all ranks must run the same",
                        t.describe(rank), theirs, t.describe(0), ours);
        EXPECT_ERROR(check_same(c, "config", lines(c.rank())), Exit::config, expected);
      },
      few);
}

TEST(CheckSame, NamesRankHostsAndBothLines) {
  const auto lines = [](int rank) {
    return fmt::format("a = 1\nb = {}\nc = {}\n", rank == 1 ? "20" : "2", rank);
  };
  expect_difference(lines, 1, "b = 20", "b = 2");
}

TEST(CheckSame, TheFirstRankThatDiffersFromRankZero) {
  on_worlds(
      [](Communicator& c) {
        if (c.size() < 3) return;
        EXPECT_ERROR(check_same(c, "build", c.rank() == 2 ? "x\n" : "y\n"), Exit::config,
                     "[build] rank 2 on host ");
      },
      {{4}, {0, 1}});
}

TEST(CheckSame, LinesThatOneRankLacks) {
  expect_difference([](int rank) { return rank == 1 ? "a\nb\n" : "a\n"; }, 1, "b", "(nothing)");
  expect_difference([](int rank) { return rank == 1 ? "a\n" : "a\nb\n"; }, 1, "(nothing)", "b");
  expect_difference([](int rank) { return rank == 1 ? "" : "a\nb\n"; }, 1, "(nothing)", "a");
}

TEST(CheckSame, TheLastLineNeedsNoEnd) {
  expect_difference([](int rank) { return rank == 1 ? "a\nb" : "a"; }, 1, "b", "(nothing)");
  expect_difference([](int rank) { return rank == 1 ? "a" : "a\nb"; }, 1, "(nothing)", "b");
  expect_difference([](int rank) { return rank == 1 ? "ab" : "a"; }, 1, "ab", "a");
}

TEST(DescribeWithHashes, NamesTypesAndShapes) {
  const std::string lines = describe_with_hashes(two_weights());
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2);
  EXPECT_TRUE(lines.starts_with("wte f32[2, 3] ")) << lines;
  EXPECT_NE(lines.find("\nbias bf16[2] "), std::string::npos) << lines;
}

TEST(DescribeWithHashes, OneBitOfOneWeightChangesItsLineAlone) {
  const std::string before = describe_with_hashes(two_weights());
  const size_t second = before.find('\n') + 1;
  for (int bit = 0; bit < 6 * 32; ++bit) {
    auto weights = two_weights();
    static_cast<uint32_t*>(weights[0].tensor.raw())[bit / 32] ^= 1u << bit % 32;
    const std::string after = describe_with_hashes(weights);
    EXPECT_NE(after.substr(0, second), before.substr(0, second)) << "bit " << bit;
    EXPECT_EQ(after.substr(second), before.substr(second));
  }
  for (int bit = 0; bit < 2 * 16; ++bit) {
    auto weights = two_weights();
    weights[1].tensor.data<bf16>()[bit / 16].bits ^= 1u << bit % 16;
    const std::string after = describe_with_hashes(weights);
    EXPECT_EQ(after.substr(0, second), before.substr(0, second)) << "bit " << bit;
    EXPECT_NE(after.substr(second), before.substr(second));
  }
}

TEST(DescribeWithHashes, OfNothing) {
  EXPECT_EQ(describe_with_hashes({}), "");
  const std::vector<NamedTensor> empty = {{"none", Tensor::empty({0})}};
  EXPECT_TRUE(describe_with_hashes(empty).starts_with("none f32[0] "));
}

TEST(DescribeWithHashes, RefusesViewsWithGaps) {
  const std::vector<NamedTensor> weights = {{"wte", two_weights()[0].tensor.transposed()}};
  EXPECT_ERROR(describe_with_hashes(weights), Exit::internal,
               "[verify] 'wte' f32[3, 2] is not contiguous");
}

}  // namespace
}  // namespace lockstep
