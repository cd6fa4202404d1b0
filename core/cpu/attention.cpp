// Causal attention with an online softmax (Dao et al., "FlashAttention", 2022).
#include <cmath>
#include <limits>

#include "core/cpu/cpu_backend.h"
#include "core/cpu/rows.h"

namespace lockstep {

namespace {

float dot(const float* a, const float* b, int64_t n) {
  float s = 0;
#pragma omp simd reduction(+ : s)
  for (int64_t i = 0; i < n; ++i) s += a[i] * b[i];
  return s;
}

void add_scaled(float* y, float factor, const float* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

}  // namespace

void CpuBackend::attention(const Tensor& qkv, const Heads& heads, Tensor& o, Tensor& lse) {
  const int64_t b = qkv.dim(0), t = qkv.dim(1), d = heads.head_dim, packed = heads.packed();
  const int64_t group = heads.n_head / heads.n_kv_head;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  const Source source(qkv);
  const Sink sink(o);
  float* lses = lse.data<float>();
  const ThreadRows keys(t, d), values(t, d), rows(3, std::max(t, d));
  parallel_for(b * heads.n_head, [&](int64_t item) {
    const int64_t sample = item / heads.n_head, head = item % heads.n_head, kv = head / group;
    const int64_t base = sample * t * packed;
    const int64_t k_at = base + (heads.n_head + kv) * d, v_at = k_at + heads.n_kv_head * d;
    for (int64_t i = 0; i < t; ++i) {
      const float* q = source.read(base + i * packed + head * d, d, rows[0]);
      float *scores = rows[1], *out = rows[2];
      float max = -std::numeric_limits<float>::infinity(), sum = 0;
      for (int64_t j = 0; j <= i; ++j) {
        scores[j] = scale * dot(q, source.read(k_at + j * packed, d, keys[j]), d);
        max = std::max(max, scores[j]);
      }
      std::fill_n(out, d, 0.0f);
      for (int64_t j = 0; j <= i; ++j) {
        const float p = fast_exp(scores[j] - max);
        sum += p;
        add_scaled(out, p, source.read(v_at + j * packed, d, values[j]), d);
      }
      for (int64_t c = 0; c < d; ++c) out[c] /= sum;
      sink.write(out, ((sample * t + i) * heads.n_head + head) * d, d);
      lses[(sample * heads.n_head + head) * t + i] = max + std::log(sum);
    }
  });
}

void CpuBackend::attention_grad(const Tensor& qkv, const Heads& heads, const Tensor& o,
                                const Tensor& lse, const Tensor& d_o, Tensor& dqkv,
                                bool accumulate) {
  const int64_t b = qkv.dim(0), t = qkv.dim(1), d = heads.head_dim, packed = heads.packed();
  const int64_t group = heads.n_head / heads.n_kv_head, width = heads.n_head * d;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  const Source source(qkv), o_source(o), do_source(d_o);
  const Sink sink(dqkv, accumulate);
  const float* lses = lse.data<float>();
  const ThreadRows dk(t, d), dv(t, d), rows(6, d);
  parallel_for(b * heads.n_kv_head, [&](int64_t item) {
    const int64_t sample = item / heads.n_kv_head, kv = item % heads.n_kv_head;
    const int64_t base = sample * t * packed;
    const int64_t k_at = base + (heads.n_head + kv) * d, v_at = k_at + heads.n_kv_head * d;
    for (int64_t j = 0; j < t; ++j) std::fill_n(dk[j], d, 0.0f), std::fill_n(dv[j], d, 0.0f);
    for (int64_t head = kv * group; head < (kv + 1) * group; ++head)
      for (int64_t i = 0; i < t; ++i) {
        const int64_t o_at = (sample * t + i) * width + head * d;
        const float* q = source.read(base + i * packed + head * d, d, rows[0]);
        const float* grad = do_source.read(o_at, d, rows[1]);
        const float delta = dot(grad, o_source.read(o_at, d, rows[2]), d);
        const float log_sum = lses[(sample * heads.n_head + head) * t + i];
        float* dq = rows[3];
        std::fill_n(dq, d, 0.0f);
        for (int64_t j = 0; j <= i; ++j) {
          const float* k = source.read(k_at + j * packed, d, rows[4]);
          const float* v = source.read(v_at + j * packed, d, rows[5]);
          const float p = fast_exp(scale * dot(q, k, d) - log_sum);
          const float ds = scale * p * (dot(grad, v, d) - delta);
          add_scaled(dq, ds, k, d);
          add_scaled(dk[j], ds, q, d);
          add_scaled(dv[j], p, grad, d);
        }
        sink.write(dq, base + i * packed + head * d, d);
      }
    for (int64_t j = 0; j < t; ++j) {
      sink.write(dk[j], k_at + j * packed, d);
      sink.write(dv[j], v_at + j * packed, d);
    }
  });
}

}  // namespace lockstep
