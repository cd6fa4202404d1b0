// Sums of micro steps, cell by cell: one after the other, or as a balanced tree. Read next:
// staged_exchange.cpp.
#pragma once

#include <bit>
#include <vector>

#include "core/backend.h"
#include "dist/data_parallel.h"

namespace lockstep {

// In same_world order the sum so far is all that is kept. As a tree, micro step m closes as many
// subtrees as it has trailing one bits, so there is at most one open sum per level: log2(count)
// buffers more.
class Accumulator {
 public:
  // The sum ends up in `result`, flat fp32.
  Accumulator(SumOrder order, Tensor result)
      : tree_(order == SumOrder::any_world), result_(result) {}

  // Before the first cell of a step, on a thread that may allocate.
  void begin(int64_t micro_steps) {
    if (!tree_) return;
    const auto levels = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(micro_steps)) - 1);
    CategoryScope scope(Category::gradients);
    while (open_.size() < levels) open_.push_back(Tensor::empty(result_.shape()));
  }

  // Adds `count` elements that a micro step has at `offset`; x is scratch, or that very place in
  // the result.
  void add(const MicroStep& micro, int64_t offset, float* x, int64_t count) {
    float* out = result_.data<float>() + offset;
    if (!tree_) {
      if (micro.index == 0)
        move(x, out, count);
      else
        backend().add(x, out, count);
      return;
    }
    size_t level = 0;
    for (; micro.index >> level & 1; ++level)
      backend().add(open_[level].data<float>() + offset, x, count);
    move(x, micro.last() ? out : open_[level].data<float>() + offset, count);
  }

  const Tensor& result() const { return result_; }

 private:
  static void move(const float* from, float* to, int64_t count) {
    if (from != to) backend().move(from, to, static_cast<size_t>(count) * sizeof(float));
  }

  const bool tree_;
  const Tensor result_;
  std::vector<Tensor> open_;  // by level: the finished left half of a subtree
};

}  // namespace lockstep
