// Attention of core/cuda against the CPU backend: on plain cores, and in bf16 on tensor cores,
// whose bounds follow the terms that each result is a sum of. Read next: codecs_test.cpp.
#include <cmath>

#include "tests/cuda_on_cpu/against_cpu.h"

namespace lockstep {
namespace {

using namespace test;

struct AttentionSizes {
  int64_t b, t;
  Heads heads;
};
#ifdef __SANITIZE_THREAD__  // a hundred times slower there; two tiles show every race
const std::vector<AttentionSizes> attention_sizes{{1, 67, {2, 1, 20}}};
#else
const std::vector<AttentionSizes> attention_sizes{
    {1, 1, {1, 1, 1}},   {2, 67, {4, 2, 20}},  {1, 130, {2, 1, 64}},
    {1, 40, {2, 2, 72}}, {1, 70, {1, 1, 128}}, {1, 35, {1, 1, 129}},
};
#endif

// On plain cores: all of fp32, and bf16 where heads are too wide for the tensor cores' tiles.
TEST_P(CudaKernels, Attention) {
  for (const AttentionSizes& s : attention_sizes) {
    if (GetParam() == DType::bf16 && s.heads.head_dim <= 128) continue;
    const Tensor qkv = in({s.b, s.t, s.heads.packed()}, 1);
    const Tensor d_o = in({s.b, s.t, s.heads.n_head * s.heads.head_dim}, 2);
    Tensor o = in(d_o.shape(), 3), lse = f32({s.b, s.heads.n_head, s.t}, 4);
    cpu_backend().attention(qkv, s.heads, o, lse);
    const double d = static_cast<double>(s.heads.head_dim), t = static_cast<double>(s.t);
    // As in kernels_attention_test.cpp: a score errs by d^1.5 u, a sum over t by t u.
    compare(
        [&](Backend& k) {
          Tensor o1 = in(d_o.shape(), 5), lse1 = f32({s.b, s.heads.n_head, s.t}, 6);
          Tensor grad = in(qkv.shape(), 7), added = f32(qkv.shape(), 8);
          k.attention(qkv, s.heads, o1, lse1);
          k.attention_grad(qkv, s.heads, o, lse, d_o, grad, false);
          k.attention_grad(qkv, s.heads, o, lse, d_o, added, true);
          return Tensors{o1, lse1, grad, added};
        },
        2 * d * std::sqrt(d) + t + 16, d, fmt::format("attention t {} dim {}", s.t, d));
  }
}

// Sizes of the terms of which attention's results are sums: of o; of dqkv as they are, and with the
// magnitudes of all products, so that nothing cancels.
struct Magnitudes {
  std::vector<double> o, dqkv, products;
};

Magnitudes magnitudes(const AttentionSizes& s, const Tensor& qkv, const Tensor& d_o) {
  const auto [h, kv_heads, d] = s.heads;
  const std::vector<double> x = values(qkv), g = values(d_o);
  Magnitudes m{std::vector<double>(g.size()), std::vector<double>(x.size()),
               std::vector<double>(x.size())};
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  for (int64_t b = 0; b < s.b; ++b)
    for (int64_t head = 0; head < h; ++head)
      for (int64_t i = 0; i < s.t; ++i) {
        const auto row = [&](int64_t at, int64_t part) {
          return (b * s.t + at) * s.heads.packed() + part * d;
        };
        const int64_t kv = head / (h / kv_heads), q = row(i, head),
                      o = ((b * s.t + i) * h + head) * d;
        std::vector<double> p(i + 1), dp(i + 1), abs_dp(i + 1);
        double sum = 0, delta = 0, abs_delta = 0;
        for (int64_t j = 0; j <= i; ++j) {
          const int64_t k = row(j, h + kv), v = row(j, h + kv_heads + kv);
          for (int64_t e = 0; e < d; ++e) {
            p[j] += scale * x[q + e] * x[k + e];
            dp[j] += g[o + e] * x[v + e];
            abs_dp[j] += std::fabs(g[o + e] * x[v + e]);
          }
          sum += p[j] = std::exp(p[j]);
        }
        for (int64_t j = 0; j <= i; ++j) {
          p[j] /= sum;
          delta += p[j] * dp[j];
          abs_delta += p[j] * abs_dp[j];
        }
        for (int64_t j = 0; j <= i; ++j) {
          const int64_t k = row(j, h + kv), v = row(j, h + kv_heads + kv);
          const double ds = scale * p[j] * std::fabs(dp[j] - delta);
          const double abs_ds = scale * p[j] * (abs_dp[j] + abs_delta);
          for (int64_t e = 0; e < d; ++e) {
            m.o[o + e] += p[j] * std::fabs(x[v + e]);
            m.dqkv[v + e] += p[j] * std::fabs(g[o + e]);
            m.dqkv[q + e] += ds * std::fabs(x[k + e]);
            m.dqkv[k + e] += ds * std::fabs(x[q + e]);
            m.products[v + e] += p[j] * std::fabs(g[o + e]);
            m.products[q + e] += abs_ds * std::fabs(x[k + e]);
            m.products[k + e] += abs_ds * std::fabs(x[q + e]);
          }
        }
      }
  return m;
}

// bf16 on tensor cores. They take probabilities and score gradients as bf16, so each term of a
// result errs by u = 2^-8 of itself; what fp32 adds is bounded as in kernels_attention_test.cpp,
// and what is stored is rounded on both sides.
TEST(CudaTensorCores, Attention) {
  for (const AttentionSizes& s : attention_sizes) {
    if (s.heads.head_dim > 128) continue;
    const int64_t d = s.heads.head_dim;
    const Tensor qkv = random_tensor({s.b, s.t, s.heads.packed()}, DType::bf16, 1);
    const Tensor d_o = random_tensor({s.b, s.t, s.heads.n_head * d}, DType::bf16, 2);
    const auto fill = [](const Tensor& like, DType type) {
      return random_tensor(like.shape(), type, 3);
    };
    Tensor o = fill(d_o, DType::bf16), lse = Tensor::zeros({s.b, s.heads.n_head, s.t});
    Tensor grad = fill(qkv, DType::bf16), added = fill(qkv, DType::f32);
    cpu_backend().attention(qkv, s.heads, o, lse);
    cpu_backend().attention_grad(qkv, s.heads, o, lse, d_o, grad, false);
    cpu_backend().attention_grad(qkv, s.heads, o, lse, d_o, added, true);
    const Magnitudes m = magnitudes(s, qkv, d_o);
    const double u = 0x1p-8, t = static_cast<double>(s.t), width = static_cast<double>(d);
    const double fp32 = 2 * (2 * width * std::sqrt(width) + t + 16) * 0x1p-24;
    const std::vector<double> want_o = values(o), want_grad = values(grad);
    const std::string what = fmt::format("attention t {} dim {}", s.t, d);
    CudaBackend gpu(nullptr);
    std::vector<std::vector<uint8_t>> first;
    for_each_order([&](int order) {
      Tensor o1 = fill(o, DType::bf16), lse1 = fill(lse, DType::f32);
      Tensor grad1 = fill(qkv, DType::bf16), added1 = fill(qkv, DType::f32);
      gpu.attention(qkv, s.heads, o1, lse1);
      gpu.attention_grad(qkv, s.heads, o, lse, d_o, grad1, false);
      gpu.attention_grad(qkv, s.heads, o, lse, d_o, added1, true);
      std::vector<std::vector<uint8_t>> all{bytes(o1), bytes(lse1), bytes(grad1), bytes(added1)};
      if (order > 0) {
        EXPECT_EQ(all, first) << what << ", order " << order;
        return;
      }
      first = std::move(all);
      expect_near(
          o1, want_o, [&](size_t i) { return (u + fp32) * m.o[i] + 2 * u * std::fabs(want_o[i]); },
          what + " o");
      expect_near(
          lse1, values(lse), [&](size_t) { return fp32 * 2; }, what + " lse");
      const auto term = [&](size_t i) { return u * m.dqkv[i] + fp32 * m.products[i]; };
      expect_near(
          grad1, want_grad, [&](size_t i) { return term(i) + 2 * u * std::fabs(want_grad[i]); },
          what + " dqkv");
      expect_near(
          added1, values(added), [&](size_t i) { return term(i) + 0x1p-22; }, what + " dqkv added");
    });
  }
}

}  // namespace
}  // namespace lockstep
