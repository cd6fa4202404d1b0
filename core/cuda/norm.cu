// LayerNorm and RMSNorm over the rows of a matrix, and their gradients. One block per row, a thread
// for each group of 8 columns; a row is read from memory once and from the cache for the passes
// after the first. Read next: softmax.cu.
#include "core/cuda/column_sums.h"
#include "core/cuda/kernels.h"

namespace lockstep::cuda {

namespace {

struct Norm {
  In x, w, b;
  float eps;
  Out y;
  float *mean, *rstd;  // [rows]
  int64_t columns;
};

// Bytes per element: the least possible (x and y once), if a row stays in the first-level cache.
template <bool centered>
__global__ void __launch_bounds__(max_row_threads) norm_kernel(Norm a) {
  const int64_t row = blockIdx.x, c = a.columns, origin = row * c, step = blockDim.x * group;
  float v[group], mean = 0, squares = 0;
  if (centered) {
    for (int64_t i = threadIdx.x * group; i < c; i += step) {
      load(a.x, origin + i, in_group(i, c), v);
#pragma unroll
      for (int k = 0; k < group; ++k) mean += v[k];
    }
    mean = block_sum(mean) / static_cast<float>(c);
  }
  for (int64_t i = threadIdx.x * group; i < c; i += step) {
    const int n = in_group(i, c);
    load(a.x, origin + i, n, v);
#pragma unroll
    for (int k = 0; k < group; ++k) squares += k < n ? (v[k] - mean) * (v[k] - mean) : 0.0f;
  }
  const float rstd = 1.0f / sqrtf(block_sum(squares) / static_cast<float>(c) + a.eps);
  for (int64_t i = threadIdx.x * group; i < c; i += step) {
    const int n = in_group(i, c);
    float scale[group], shift[group] = {};
    load(a.x, origin + i, n, v);
    load(a.w, i, n, scale);
    if (centered) load(a.b, i, n, shift);
#pragma unroll
    for (int k = 0; k < group; ++k) v[k] = (v[k] - mean) * rstd * scale[k] + shift[k];
    store(a.y, origin + i, n, v);
  }
  if (threadIdx.x == 0) {
    if (centered) a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

struct NormGrad {
  In x, w, dy;
  const float *mean, *rstd;  // mean null without centering
  Out dx;
  int64_t columns;

  __device__ float center(int64_t row) const { return mean ? mean[row] : 0.0f; }
};

// With xhat = (x - mean) rstd and g = dy w:
//   dx = rstd (g - mean(g) - xhat mean(g xhat)), without centering rstd (g - xhat mean(g xhat)).
// Bytes per element: the least possible (x, dy and dx once), if a row stays in the cache.
template <bool centered>
__global__ void __launch_bounds__(max_row_threads) norm_grad_kernel(NormGrad a) {
  const int64_t row = blockIdx.x, c = a.columns, origin = row * c, step = blockDim.x * group;
  const float mean = a.center(row), rstd = a.rstd[row];
  float v[group], d[group], scale[group], g_sum = 0, gx_sum = 0;
  for (int64_t i = threadIdx.x * group; i < c; i += step) {
    const int n = in_group(i, c);
    load(a.x, origin + i, n, v);
    load(a.dy, origin + i, n, d);  // zero beyond n, and so are the terms
    load(a.w, i, n, scale);
#pragma unroll
    for (int k = 0; k < group; ++k) {
      const float g = d[k] * scale[k];
      g_sum += g;
      gx_sum += g * (v[k] - mean) * rstd;
    }
  }
  const float g_mean = centered ? block_sum(g_sum) / static_cast<float>(c) : 0.0f;
  const float gx_mean = block_sum(gx_sum) / static_cast<float>(c);
  for (int64_t i = threadIdx.x * group; i < c; i += step) {
    const int n = in_group(i, c);
    load(a.x, origin + i, n, v);
    load(a.dy, origin + i, n, d);
    load(a.w, i, n, scale);
#pragma unroll
    for (int k = 0; k < group; ++k)
      d[k] = rstd * (d[k] * scale[k] - g_mean - (v[k] - mean) * rstd * gx_mean);
    store(a.dx, origin + i, n, d);
  }
}

// dw = sum of dy xhat, db = sum of dy. Reads x and dy a second time: a kernel that did both would
// meet at two barriers per row, which costs more than these bytes (from the second-level cache
// where the matrix fits).
template <int K>
struct WeightTerms {
  NormGrad a;
  __device__ void add(int64_t row, int64_t column, int n, float (&sum)[K][group]) const {
    const float mean = a.center(row), rstd = a.rstd[row];
    float v[group], d[group];
    load(a.x, row * a.columns + column, n, v);
    load(a.dy, row * a.columns + column, n, d);
#pragma unroll
    for (int i = 0; i < group; ++i) {
      sum[0][i] += d[i] * (v[i] - mean) * rstd;
      if (K == 2) sum[K - 1][i] += d[i];
    }
  }
};

dim3 block_for(int64_t columns) {
  return dim3(static_cast<unsigned>(row_threads(columns)));
}

}  // namespace

void layer_norm(Stream s, const In& x, const In& w, const In& b, float eps, const Out& y,
                float* mean, float* rstd, int64_t rows, int64_t columns) {
  launch(norm_kernel<true>, dim3(static_cast<unsigned>(rows)), block_for(columns), 0, s,
         Norm{x, w, b, eps, y, mean, rstd, columns});
}

void layer_norm_grad(Stream s, const In& x, const In& w, const float* mean, const float* rstd,
                     const In& dy, const Out& dx, const Out& dw, const Out& db, int64_t rows,
                     int64_t columns, float* scratch) {
  const NormGrad a{x, w, dy, mean, rstd, dx, columns};
  if (dx.data)
    launch(norm_grad_kernel<true>, dim3(static_cast<unsigned>(rows)), block_for(columns), 0, s, a);
  if (!dw.data && !db.data) return;
  launch_column_partials<2>(s, WeightTerms<2>{a}, rows, columns, scratch);
  if (dw.data) finish_column_sums(s, scratch, row_pieces(rows), 0, 2, columns, dw);
  if (db.data) finish_column_sums(s, scratch, row_pieces(rows), 1, 2, columns, db);
}

void rms_norm(Stream s, const In& x, const In& w, float eps, const Out& y, float* rstd,
              int64_t rows, int64_t columns) {
  launch(norm_kernel<false>, dim3(static_cast<unsigned>(rows)), block_for(columns), 0, s,
         Norm{x, w, {}, eps, y, nullptr, rstd, columns});
}

void rms_norm_grad(Stream s, const In& x, const In& w, const float* rstd, const In& dy,
                   const Out& dx, const Out& dw, int64_t rows, int64_t columns, float* scratch) {
  const NormGrad a{x, w, dy, nullptr, rstd, dx, columns};
  if (dx.data)
    launch(norm_grad_kernel<false>, dim3(static_cast<unsigned>(rows)), block_for(columns), 0, s, a);
  if (!dw.data) return;
  launch_column_partials<1>(s, WeightTerms<1>{a}, rows, columns, scratch);
  finish_column_sums(s, scratch, row_pieces(rows), 0, 1, columns, dw);
}

}  // namespace lockstep::cuda
