// Which rank gets which GPU.
#include "examples/rank_device.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Visible = std::vector<std::vector<std::string>>;

// The choices of all ranks, which live on hosts as host_of says.
std::vector<int> choices(const std::vector<int>& host_of, const Visible& visible,
                         bool share = false) {
  std::vector<int> all;
  Topology where{.size = static_cast<int>(host_of.size()), .host_name = {}, .host_of = host_of};
  for (int h : host_of) where.host_name.push_back(h == 0 ? "a" : "b");
  for (where.rank = 0; where.rank < where.size; ++where.rank) {
    where.local_rank = where.local_size = 0;
    for (int r = 0; r < where.size; ++r) {
      where.local_size += where.same_host(r);
      where.local_rank += r < where.rank && where.same_host(r);
    }
    all.push_back(choose_device(where, visible, share));
  }
  return all;
}

TEST(RankDevice, EveryRankGetsAGpuOfItsOwn) {
  EXPECT_EQ(choices({0, 0}, {{"x", "y"}, {"x", "y"}}), (std::vector{0, 1}));
  // A scheduler may show each rank one GPU: index 0 is another one for each.
  EXPECT_EQ(choices({0, 0}, {{"x"}, {"y"}}), (std::vector{0, 0}));
  EXPECT_EQ(choices({0, 1, 0, 1}, {{"x", "y"}, {"z", "u"}, {"x", "y"}, {"z", "u"}}),
            (std::vector{0, 0, 1, 1}));
}

TEST(RankDevice, TooFewGpusAreAnErrorUnlessTheyAreShared) {
  const Visible one{{"x"}, {"x"}};
  EXPECT_EQ(choices({0, 0}, one, true), (std::vector{0, 0}));
  try {
    choices({0, 0}, one);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::config);
    EXPECT_STREQ(error.what(),
                 "[dist.backend] 2 ranks on host a see 1 GPU, and NCCL needs one for each; start "
                 "fewer, or share them with dist.backend mpi, which exchanges through the host");
  }
}

}  // namespace
}  // namespace lockstep
