// The tree's shape, its bits, and that a sum may go into its own inputs.
#include "core/cpu/tree_sum.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace lockstep {
namespace {

// Pairs neighbours level by level, the odd one carried up: another way to say the same tree.
float by_levels(std::vector<float> x) {
  while (x.size() > 1) {
    std::vector<float> next;
    for (size_t i = 0; i + 1 < x.size(); i += 2) next.push_back(x[i] + x[i + 1]);
    if (x.size() % 2) next.push_back(x.back());
    x = next;
  }
  return x[0];
}

std::vector<std::vector<float>> random_parts(size_t ranks, size_t n) {
  std::mt19937 random(static_cast<unsigned>(ranks * 1000 + n));
  std::normal_distribution<float> normal(0, 1e3);
  std::vector<std::vector<float>> parts(ranks, std::vector<float>(n));
  for (auto& part : parts)
    for (float& value : part) value = normal(random) * normal(random);
  return parts;
}

TEST(TreeSum, HasTheBitsOfTheTreeWhereverItWrites) {
  for (size_t ranks : {1, 2, 3, 4, 5, 6, 7, 8, 13, 16}) {
    for (size_t n : {0, 1, 17, 1024, 3001}) {
      const auto inputs = random_parts(ranks, n);
      for (size_t target = 0; target <= ranks; ++target) {  // each part in turn, then none of them
        auto parts = inputs;
        std::vector<float> apart(n), second(n);
        std::vector<const float*> pointers;
        for (auto& part : parts) pointers.push_back(part.data());
        float* const outs[] = {target < ranks ? parts[target].data() : apart.data(), second.data()};
        tree_sum(pointers, outs, n);
        for (size_t i = 0; i < n; ++i) {
          std::vector<float> column;
          for (const auto& part : inputs) column.push_back(part[i]);
          const float expected = by_levels(column);
          for (const float* out : outs)
            ASSERT_EQ(std::memcmp(&out[i], &expected, sizeof(float)), 0)
                << ranks << " ranks, element " << i << " of " << n << ", into part " << target;
        }
      }
    }
  }
}

TEST(TreeSum, IsNotALeftToRightSum) {
  const float big = 1 << 24;  // big + 1 rounds back to big
  const float values[] = {big, 1, 1, 1};
  std::vector<const float*> parts;
  for (const float& value : values) parts.push_back(&value);
  float sum = 0;
  float* const outs[] = {&sum};
  tree_sum(parts, outs, 1);
  EXPECT_EQ(sum, big + 2);
}

}  // namespace
}  // namespace lockstep
