// RowSums: sums over the rows of a matrix (gradients of biases and norm weights), the same for any
// number of threads: one partial sum per fixed piece of rows, added up in order at the end.
#pragma once

#include "core/cpu/rows.h"

namespace lockstep {

class RowSums {
 public:
  RowSums(int64_t rows, int64_t width)
      : rows_(rows),
        width_(width),
        pieces_((rows + rows_per_piece - 1) / rows_per_piece),
        partial_(pieces_ * width) {}

  // body(begin, end, sum) adds rows [begin, end) to sum [width], which is zero on entry.
  template <class Body>
  void for_pieces(Body&& body) {
    parallel_for(pieces_, [&](int64_t p) {
      float* sum = partial_.data() + p * width_;
      std::fill_n(sum, width_, 0.0f);
      body(p * rows_per_piece, std::min(rows_, (p + 1) * rows_per_piece), sum);
    });
  }

  // The sum [width] of the piece that `row` is in, for callers with loops of their own. Not zeroed.
  float* partial(int64_t row) { return partial_.data() + row / rows_per_piece * width_; }

  // out [n] = columns [first, first + n) of the sums
  void write(int64_t first, const Tensor& out, bool accumulate) {
    const Sink sink(out, accumulate);
    parallel_pieces(out.numel(), 256, [&](int64_t begin, int64_t end) {
      float total[256] = {};
      for (int64_t p = 0; p < pieces_; ++p) {
        const float* sum = partial_.data() + p * width_ + first;
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) total[i - begin] += sum[i];
      }
      sink.write(total, begin, end - begin);
    });
  }

 private:
  int64_t rows_, width_, pieces_;
  Scratch<float> partial_;
};

}  // namespace lockstep
