// Reductions: over any dimensions of a tensor, over rows, and the GELU gradient that sums its rows
// on the way. Sums are taken per fixed piece, then over pieces in order. Read next: norm.cpp.
#include <cmath>
#include <limits>

#include "core/cpu/cpu_backend.h"
#include "core/cpu/row_sums.h"
#include "core/cpu/walk.h"

namespace lockstep {

namespace {

// Fp32 within a chunk, fp64 across chunks: a mean over millions stays good to fp32.
double reduce_chunk(Reduction r, const float* x, int64_t n, double so_far) {
  if (r == Reduction::max) {
    for (int64_t i = 0; i < n; ++i)
      if (x[i] > so_far || x[i] != x[i]) so_far = x[i];
    return so_far;
  }
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i];
  return so_far + sum;
}

}  // namespace

void CpuBackend::reduce(Reduction r, const Tensor& x, Tensor& y, bool accumulate) {
  // x seen twice: its kept dimensions with y, and the reduced ones below each element of y.
  Shape kept = x.shape(), reduced = x.shape();
  for (int d = 0; d < x.ndim(); ++d) (y.shape()[d] == 1 ? kept : reduced)[d] = 1;
  const Tensor corner = x.view(kept, x.strides(), x.offset());
  const Tensor below = x.view(reduced, x.strides(), x.offset());
  const Walk<2> outer(kept, {&corner, &y});
  const Walk<1> inner(reduced, {&below});
  const int64_t count = below.numel();
  const double start = r == Reduction::max ? -std::numeric_limits<double>::infinity() : 0.0;

  const Source source(x);
  const Sink sink(y, accumulate);
  outer.for_pieces([&](const auto& at, int64_t n) {
    alignas(64) float buffer[chunk];
    for (int64_t i = 0; i < n; ++i) {
      const int64_t origin = at[0] + i * outer.row_stride(0);
      double total = start;
      for (int64_t row = 0; count > 0 && row < inner.rows(); ++row)
        for (int64_t begin = 0; begin < inner.row_length(); begin += chunk) {
          const int64_t m = std::min(chunk, inner.row_length() - begin);
          const int64_t stride = inner.row_stride(0);
          const int64_t offset = origin + inner.row_offsets(row)[0] + begin * stride;
          total = reduce_chunk(r, read_strided(source, offset, stride, m, buffer), m, total);
        }
      if (r == Reduction::mean) total /= static_cast<double>(count);
      sink.write(static_cast<float>(total), at[1] + i * outer.row_stride(1));
    }
  });
}

void CpuBackend::sum_rows(const Tensor& dy, Tensor& db, bool accumulate) {
  const int64_t rows = dy.dim(0), n = dy.dim(1);
  RowSums sums(rows, n);
  const ThreadRows buffers(1, n);
  const Source source(dy);
  sums.for_pieces([&](int64_t begin, int64_t end, float* sum) {
    for (int64_t row = begin; row < end; ++row) {
      const float* d = source.read(row * n, n, buffers[0]);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) sum[i] += d[i];
    }
  });
  sums.write(0, db, accumulate);
}

void CpuBackend::gelu_bias_grad(const Unary& gelu, const Tensor& pre, const Tensor& dy,
                                Tensor& dpre, Tensor* db, bool accumulate_db) {
  const int64_t rows = pre.dim(0), n = pre.dim(1);
  RowSums sums(rows, n);
  const ThreadRows buffers(3, n);
  const Source x_source(pre), d_source(dy);
  const Sink sink(dpre);
  std::visit(
      [&](const auto& fn) {
        sums.for_pieces([&](int64_t begin, int64_t end, float* sum) {
          for (int64_t row = begin; row < end; ++row) {
            const float* x = x_source.read(row * n, n, buffers[0]);
            const float* d = d_source.read(row * n, n, buffers[1]);
            float* out = buffers[2];
#pragma omp simd
            for (int64_t i = 0; i < n; ++i) {
              out[i] = d[i] * fn.grad(x[i], fn(x[i]));
              sum[i] += out[i];
            }
            sink.write(out, row * n, n);
          }
        });
      },
      gelu);
  if (db) sums.write(0, *db, accumulate_db);
}

}  // namespace lockstep
