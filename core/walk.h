// Walk: N operands of one shape, any strides, seen as the fewest possible rows, each row with one
// stride per operand. Contiguous tensors become a single row. Shared by the elementwise kernels and
// reductions of all devices. Read next: cpu/elementwise.cpp, cuda/map.h.
#pragma once

#include <algorithm>
#include <array>

#include "core/parallel.h"
#include "core/tensor.h"

namespace lockstep {

template <int N>
class Walk {
 public:
  using Offsets = std::array<int64_t, N>;

  // Each operand's shape broadcasts to `shape`: aligned at the last dimension, size 1 repeats.
  Walk(const Shape& shape, const std::array<const Tensor*, N>& operands) {
    for (size_t d = shape.size(); d-- > 0;) {
      if (shape[d] == 1) continue;
      Offsets step;
      for (int k = 0; k < N; ++k) step[k] = stride_of(*operands[k], shape.size() - d);
      push_outer(shape[d], step);
    }
    for (int d = 1; d < ndim_; ++d) rows_ *= sizes_[d];
  }

  int ndim() const { return ndim_; }               // 0: one element
  int64_t size(int d) const { return sizes_[d]; }  // dimension 0 runs along a row
  int64_t stride(int d, int k) const { return strides_[d][k]; }
  int64_t rows() const { return rows_; }
  int64_t row_length() const { return ndim_ > 0 ? sizes_[0] : 1; }
  int64_t row_stride(int k) const { return ndim_ > 0 ? strides_[0][k] : 1; }
  Offsets row_offsets(int64_t row) const {
    Offsets o{};
    for (int d = 1; d < ndim_; row /= sizes_[d], ++d)
      for (int k = 0; k < N; ++k) o[k] += row % sizes_[d] * strides_[d][k];
    return o;
  }

  // body(offsets, n) over all elements in parallel; pieces never cross a row.
  template <class Body>
  void for_pieces(Body&& body) const {
    constexpr int64_t grain = 4096;
    const int64_t per_row = (row_length() + grain - 1) / grain;
    parallel_for(rows_ * per_row, [&](int64_t i) {
      Offsets o = row_offsets(i / per_row);
      const int64_t begin = i % per_row * grain;
      for (int k = 0; k < N; ++k) o[k] += begin * row_stride(k);
      body(o, std::min(grain, row_length() - begin));
    });
  }

  static constexpr int max_dims = 8;

 private:
  static int64_t stride_of(const Tensor& t, size_t from_end) {
    if (from_end > t.shape().size()) return 0;
    const size_t d = t.shape().size() - from_end;
    return t.shape()[d] == 1 ? 0 : t.strides()[d];
  }
  // Dimensions arrive from the last to the first; one that continues the previous is merged into
  // it.
  void push_outer(int64_t size, const Offsets& step) {
    bool continues = ndim_ > 0;
    for (int k = 0; k < N && continues; ++k)
      continues = step[k] == strides_[ndim_ - 1][k] * sizes_[ndim_ - 1];
    if (continues) {
      sizes_[ndim_ - 1] *= size;
      return;
    }
    check(ndim_ < max_dims, "[walk] more than {} dimensions that cannot be merged", max_dims);
    sizes_[ndim_] = size;
    strides_[ndim_++] = step;
  }

  int ndim_ = 0;  // dimension 0 runs along a row
  int64_t rows_ = 1;
  std::array<int64_t, max_dims> sizes_{};
  std::array<Offsets, max_dims> strides_{};
};

}  // namespace lockstep
