// LayerNorm (Ba et al., 2016) and RMSNorm (Zhang and Sennrich, 2019) over the rows of a matrix.
// A row is read once and stays in cache for every pass over it. Read next: softmax.cpp.
#include <cmath>

#include "core/cpu/cpu_backend.h"
#include "core/cpu/row_sums.h"

namespace lockstep {

namespace {

float sum(const float* x, int64_t n) {
  float s = 0;
#pragma omp simd reduction(+ : s)
  for (int64_t i = 0; i < n; ++i) s += x[i];
  return s;
}

float sum_squares(const float* x, float mean, int64_t n) {
  float s = 0;
#pragma omp simd reduction(+ : s)
  for (int64_t i = 0; i < n; ++i) s += (x[i] - mean) * (x[i] - mean);
  return s;
}

}  // namespace

void CpuBackend::layer_norm(const Tensor& x, const Tensor& w, const Tensor& b, float eps, Tensor& y,
                            Tensor& mean, Tensor& rstd) {
  const int64_t rows = x.dim(0), c = x.dim(1);
  const ThreadRows buffers(4, c);
  const Source x_source(x), w_source(w), b_source(b);
  const Sink sink(y);
  float *means = mean.data<float>(), *rstds = rstd.data<float>();
  parallel_pieces(rows, rows_per_piece, [&](int64_t begin, int64_t end) {
    const float* scale = w_source.read(0, c, buffers[0]);
    const float* shift = b_source.read(0, c, buffers[1]);
    for (int64_t row = begin; row < end; ++row) {
      const float* v = x_source.read(row * c, c, buffers[2]);
      const float m = sum(v, c) / static_cast<float>(c);
      const float r = 1.0f / std::sqrt(sum_squares(v, m, c) / static_cast<float>(c) + eps);
      float* out = buffers[3];
#pragma omp simd
      for (int64_t i = 0; i < c; ++i) out[i] = (v[i] - m) * r * scale[i] + shift[i];
      sink.write(out, row * c, c);
      means[row] = m;
      rstds[row] = r;
    }
  });
}

// With xhat = (x - mean) rstd and g = dy w:  dx = rstd (g - mean(g) - xhat mean(g xhat)).
void CpuBackend::layer_norm_grad(const Tensor& x, const Tensor& w, const Tensor& mean,
                                 const Tensor& rstd, const Tensor& dy, Tensor* dx,
                                 bool accumulate_dx, Tensor* dw, bool accumulate_dw, Tensor* db,
                                 bool accumulate_db) {
  const int64_t rows = x.dim(0), c = x.dim(1);
  RowSums sums(rows, 2 * c);  // [dw, db]
  const ThreadRows buffers(4, c);
  const Source x_source(x), w_source(w), dy_source(dy);
  const float *means = mean.data<float>(), *rstds = rstd.data<float>();
  sums.for_pieces([&](int64_t begin, int64_t end, float* piece) {
    const float* scale = w_source.read(0, c, buffers[0]);
    float *dw_sum = piece, *db_sum = piece + c;
    for (int64_t row = begin; row < end; ++row) {
      const float* v = x_source.read(row * c, c, buffers[1]);
      const float* d = dy_source.read(row * c, c, buffers[2]);
      const float m = means[row], r = rstds[row];
      float g_sum = 0, gx_sum = 0;
#pragma omp simd reduction(+ : g_sum, gx_sum)
      for (int64_t i = 0; i < c; ++i) {
        const float xhat = (v[i] - m) * r;
        dw_sum[i] += d[i] * xhat;
        db_sum[i] += d[i];
        g_sum += d[i] * scale[i];
        gx_sum += d[i] * scale[i] * xhat;
      }
      if (!dx) continue;
      const float g_mean = g_sum / static_cast<float>(c), gx_mean = gx_sum / static_cast<float>(c);
      float* out = buffers[3];
#pragma omp simd
      for (int64_t i = 0; i < c; ++i)
        out[i] = r * (d[i] * scale[i] - g_mean - (v[i] - m) * r * gx_mean);
      Sink(*dx, accumulate_dx).write(out, row * c, c);
    }
  });
  if (dw) sums.write(0, *dw, accumulate_dw);
  if (db) sums.write(c, *db, accumulate_db);
}

void CpuBackend::rms_norm(const Tensor& x, const Tensor& w, float eps, Tensor& y, Tensor& rstd) {
  const int64_t rows = x.dim(0), c = x.dim(1);
  const ThreadRows buffers(3, c);
  const Source x_source(x), w_source(w);
  const Sink sink(y);
  float* rstds = rstd.data<float>();
  parallel_pieces(rows, rows_per_piece, [&](int64_t begin, int64_t end) {
    const float* scale = w_source.read(0, c, buffers[0]);
    for (int64_t row = begin; row < end; ++row) {
      const float* v = x_source.read(row * c, c, buffers[1]);
      const float r = 1.0f / std::sqrt(sum_squares(v, 0.0f, c) / static_cast<float>(c) + eps);
      float* out = buffers[2];
#pragma omp simd
      for (int64_t i = 0; i < c; ++i) out[i] = v[i] * r * scale[i];
      sink.write(out, row * c, c);
      rstds[row] = r;
    }
  });
}

// With xhat = x rstd and g = dy w:  dx = rstd (g - xhat mean(g xhat)).
void CpuBackend::rms_norm_grad(const Tensor& x, const Tensor& w, const Tensor& rstd,
                               const Tensor& dy, Tensor* dx, bool accumulate_dx, Tensor* dw,
                               bool accumulate_dw) {
  const int64_t rows = x.dim(0), c = x.dim(1);
  RowSums sums(rows, c);
  const ThreadRows buffers(4, c);
  const Source x_source(x), w_source(w), dy_source(dy);
  const float* rstds = rstd.data<float>();
  sums.for_pieces([&](int64_t begin, int64_t end, float* dw_sum) {
    const float* scale = w_source.read(0, c, buffers[0]);
    for (int64_t row = begin; row < end; ++row) {
      const float* v = x_source.read(row * c, c, buffers[1]);
      const float* d = dy_source.read(row * c, c, buffers[2]);
      const float r = rstds[row];
      float gx_sum = 0;
#pragma omp simd reduction(+ : gx_sum)
      for (int64_t i = 0; i < c; ++i) {
        const float xhat = v[i] * r;
        dw_sum[i] += d[i] * xhat;
        gx_sum += d[i] * scale[i] * xhat;
      }
      if (!dx) continue;
      const float gx_mean = gx_sum / static_cast<float>(c);
      float* out = buffers[3];
#pragma omp simd
      for (int64_t i = 0; i < c; ++i) out[i] = r * (d[i] * scale[i] - v[i] * r * gx_mean);
      Sink(*dx, accumulate_dx).write(out, row * c, c);
    }
  });
  if (dw) sums.write(0, *dw, accumulate_dw);
}

}  // namespace lockstep
