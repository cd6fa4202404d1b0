// Softmax over rows, and the cross-entropy of logits with its gradient. Read next: attention.cpp.
#include <cmath>
#include <limits>

#include "core/cpu/cpu_backend.h"
#include "core/cpu/rows.h"

namespace lockstep {

namespace {

float max_of(const float* x, int64_t n) {
  float m = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : m)
  for (int64_t i = 0; i < n; ++i) m = x[i] > m ? x[i] : m;
  return m;
}

// y = e^(x - shift); returns its sum.
float exp_row(const float* x, float shift, float* y, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    y[i] = fast_exp(x[i] - shift);
    sum += y[i];
  }
  return sum;
}

constexpr int64_t block = 512;  // elements of a long row

void scale_row(float* x, float factor, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

}  // namespace

void CpuBackend::softmax(const Tensor& x, Tensor& y) {
  const int64_t c = x.dim(-1);
  if (x.numel() == 0) return;
  const ThreadRows buffers(2, c);
  const Source source(x);
  const Sink sink(y);
  parallel_pieces(x.numel() / c, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* v = source.read(row * c, c, buffers[0]);
      float* out = buffers[1];
      scale_row(out, 1.0f / exp_row(v, max_of(v, c), out, c), c);
      sink.write(out, row * c, c);
    }
  });
}

// dx = y (dy - sum(y dy))
void CpuBackend::softmax_grad(const Tensor& y, const Tensor& dy, Tensor& dx, bool accumulate) {
  const int64_t c = y.dim(-1);
  if (y.numel() == 0) return;
  const ThreadRows buffers(3, c);
  const Source y_source(y), dy_source(dy);
  const Sink sink(dx, accumulate);
  parallel_pieces(y.numel() / c, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* p = y_source.read(row * c, c, buffers[0]);
      const float* d = dy_source.read(row * c, c, buffers[1]);
      float* out = buffers[2];
      float dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t i = 0; i < c; ++i) dot += p[i] * d[i];
#pragma omp simd
      for (int64_t i = 0; i < c; ++i) out[i] = p[i] * (d[i] - dot);
      sink.write(out, row * c, c);
    }
  });
}

// A row of logits is as large as a cache: it is worked on in blocks, and during each the memory of
// a block that comes later is asked for.
void CpuBackend::cross_entropy(const Tensor& logits, const Tensor& targets, Tensor& loss,
                               Tensor* dlogits) {
  const int64_t rows = logits.dim(0), v = logits.dim(1);
  const ThreadRows buffers(2, v);
  const Source source(logits);
  const Sink sink(dlogits ? *dlogits : loss);  // written only where there is dlogits
  const int32_t* target = targets.data<int32_t>();
  float* losses = loss.data<float>();
  const auto for_blocks = [v](auto&& body) {
    for (int64_t first = 0; first < v; first += block) body(first, std::min(block, v - first));
  };
  parallel_pieces(rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* out = buffers[1];
      if (target[row] < 0) {
        losses[row] = 0.0f;
        std::fill_n(out, v, 0.0f);
        if (dlogits) sink.write(out, row * v, v);
        continue;
      }
      const float* x = source.read(row * v, v, buffers[0]);
      const float max = max_of(x, v);
      float sum = 0;
      for_blocks([&](int64_t first, int64_t n) {
        if (dlogits) prefetch(sink, row * v + first, n);
        sum += exp_row(x + first, max, out + first, n);
      });
      losses[row] = std::log(sum) + (max - x[target[row]]);
      if (!dlogits) continue;
      for_blocks([&](int64_t first, int64_t n) {
        if (row + 1 < rows) prefetch(source, (row + 1) * v + first, n);
        scale_row(out + first, 1.0f / sum, n);
        sink.write(out + first, row * v + first, n);
      });
      sink.write(out[target[row]] - 1.0f, row * v + target[row]);
    }
  });
}

}  // namespace lockstep
