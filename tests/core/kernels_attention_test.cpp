// Attention and its gradient against the textbook formula in double precision, for grouped heads
// and sizes that fill no tile; and the same bits for any number of threads.
#include "tests/core/kernel_data.h"

namespace lockstep {
namespace {

using namespace test;

struct Case {
  int64_t b, t;
  Heads heads;
  DType dtype;
};

struct Reference {
  std::vector<double> o, lse, dqkv;
};

// Everything by the definition, one query at a time.
Reference reference(const Case& c, const Tensor& qkv, const Tensor& d_o) {
  const auto [h, kv_heads, d] = c.heads;
  const int64_t packed = c.heads.packed();
  const std::vector<double> x = values(qkv), g = values(d_o);
  Reference r{std::vector<double>(c.b * c.t * h * d), std::vector<double>(c.b * h * c.t),
              std::vector<double>(x.size())};
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  for (int64_t s = 0; s < c.b; ++s)
    for (int64_t head = 0; head < h; ++head)
      for (int64_t i = 0; i < c.t; ++i) {
        const int64_t kv = head / (h / kv_heads);
        const auto q_at = [&](int64_t row) { return (s * c.t + row) * packed + head * d; };
        const auto k_at = [&](int64_t row) { return (s * c.t + row) * packed + (h + kv) * d; };
        const auto v_at = [&](int64_t row) { return k_at(row) + kv_heads * d; };
        const int64_t o_at = ((s * c.t + i) * h + head) * d;
        std::vector<double> p(i + 1), dp(i + 1);
        double max = -1e300, sum = 0, delta = 0;
        for (int64_t j = 0; j <= i; ++j) {
          for (int64_t e = 0; e < d; ++e) p[j] += scale * x[q_at(i) + e] * x[k_at(j) + e];
          max = std::max(max, p[j]);
        }
        for (double& v : p) sum += v = std::exp(v - max);
        r.lse[(s * h + head) * c.t + i] = max + std::log(sum);
        for (int64_t j = 0; j <= i; ++j) {
          p[j] /= sum;
          for (int64_t e = 0; e < d; ++e) {
            r.o[o_at + e] += p[j] * x[v_at(j) + e];
            dp[j] += g[o_at + e] * x[v_at(j) + e];
            r.dqkv[v_at(j) + e] += p[j] * g[o_at + e];
          }
          delta += p[j] * dp[j];
        }
        for (int64_t j = 0; j <= i; ++j)
          for (int64_t e = 0; e < d; ++e) {
            const double ds = scale * p[j] * (dp[j] - delta);
            r.dqkv[q_at(i) + e] += ds * x[k_at(j) + e];
            r.dqkv[k_at(j) + e] += ds * x[q_at(i) + e];
          }
      }
  return r;
}

struct Result {
  Tensor o, lse, dqkv;
};

Result run(const Case& c, const Tensor& qkv, const Tensor& d_o) {
  Result r{Tensor::empty({c.b, c.t, c.heads.n_head * c.heads.head_dim}, c.dtype),
           Tensor::empty({c.b, c.heads.n_head, c.t}), Tensor::empty(qkv.shape(), c.dtype)};
  backend().attention(qkv, c.heads, r.o, r.lse);
  backend().attention_grad(qkv, c.heads, r.o, r.lse, d_o, r.dqkv, false);
  return r;
}

const Case cases[] = {
    {1, 1, {1, 1, 1}, DType::f32},     {2, 5, {2, 2, 8}, DType::f32},
    {1, 64, {2, 2, 64}, DType::f32},   {2, 67, {4, 2, 20}, DType::f32},
    {1, 130, {3, 1, 33}, DType::f32},  {1, 200, {2, 1, 64}, DType::f32},
    {1, 65, {1, 1, 129}, DType::f32},  {2, 67, {4, 2, 20}, DType::bf16},
    {1, 130, {3, 1, 33}, DType::bf16}, {1, 128, {2, 2, 64}, DType::bf16},
    {1, 40, {6, 3, 128}, DType::bf16},
};

std::string describe(const Case& c) {
  return fmt::format("b {} t {} heads {}/{} dim {} {}", c.b, c.t, c.heads.n_head, c.heads.n_kv_head,
                     c.heads.head_dim, name_of(c.dtype));
}

TEST(KernelsAttention, AgreesWithTheDefinition) {
  for (const Case& c : cases) {
    const Tensor qkv = random_tensor({c.b, c.t, c.heads.packed()}, c.dtype, 1);
    const Tensor d_o = random_tensor({c.b, c.t, c.heads.n_head * c.heads.head_dim}, c.dtype, 2);
    const Reference want = reference(c, qkv, d_o);
    const Result got = run(c, qkv, d_o);
    // Inputs are at most 1, so a score errs by d^1.5 u and probabilities by that relative error;
    // every sum over t adds t u. What is written in bf16 (o, which the gradient reads, and the
    // gradient) is rounded once more; tensor cores take probabilities as bf16, whose sum of
    // products with values of at most 1 errs by u. Sums of a gradient run over at most t terms of a
    // group.
    const double d = static_cast<double>(c.heads.head_dim), t = static_cast<double>(c.t);
    const double relative = (2 * d * std::sqrt(d) + t + 16) * 0x1p-24;
    const double u = unit_roundoff(c.dtype);
    const double group = static_cast<double>(c.heads.n_head / c.heads.n_kv_head);
    const double product = c.dtype == DType::bf16 ? u : 0;
    const auto o_bound = [&](size_t i) {
      return relative + product + 2 * u * std::fabs(want.o[i]);
    };
    expect_near(got.o, want.o, o_bound, describe(c) + " o");
    expect_near(
        got.lse, want.lse, [&](size_t) { return 2 * relative + 16 * 0x1p-24; },
        describe(c) + " lse");
    const double bf16_part = c.dtype == DType::bf16 ? 4 * u * std::sqrt(d) : 0;
    expect_near(
        got.dqkv, want.dqkv,
        [&](size_t i) {
          return group * d * (relative * 8 + bf16_part) + 2 * u * std::fabs(want.dqkv[i]);
        },
        describe(c) + " dqkv");
  }
}

TEST(KernelsAttention, LargeScoresStayFinite) {
  const Case c{1, 70, {1, 1, 16}, DType::f32};
  const Tensor qkv = random_tensor({1, 70, c.heads.packed()}, DType::f32, 3, 60.0f);
  const Tensor d_o = random_tensor({1, 70, 16}, DType::f32, 4);
  const Result got = run(c, qkv, d_o);
  for (const Tensor& t : {got.o, got.lse, got.dqkv})
    for (double v : values(t)) ASSERT_TRUE(std::isfinite(v));
}

TEST(KernelsAttention, AccumulatesIntoTheGradient) {
  const Case c{1, 37, {2, 1, 12}, DType::f32};
  const Tensor qkv = random_tensor({1, 37, c.heads.packed()}, DType::f32, 5);
  const Tensor d_o = random_tensor({1, 37, 24}, DType::f32, 6);
  const Result once = run(c, qkv, d_o);
  Tensor sum = random_tensor(qkv.shape(), DType::f32, 7);
  std::vector<double> want = values(sum);
  const std::vector<double> grad = values(once.dqkv);
  for (size_t i = 0; i < want.size(); ++i)
    want[i] = static_cast<float>(want[i]) + static_cast<float>(grad[i]);
  backend().attention_grad(qkv, c.heads, once.o, once.lse, d_o, sum, true);
  expect_near(
      sum, want, [](size_t) { return 0.0; }, "accumulated");
}

TEST(KernelsAttention, SameBitsForAnyNumberOfThreads) {
  for (const Case& c : cases) {
    const Tensor qkv = random_tensor({c.b, c.t, c.heads.packed()}, c.dtype, 8);
    const Tensor d_o = random_tensor({c.b, c.t, c.heads.n_head * c.heads.head_dim}, c.dtype, 9);
    expect_thread_independent(
        [&] {
          const Result r = run(c, qkv, d_o);
          return std::vector<Tensor>{r.o, r.lse, r.dqkv};
        },
        describe(c));
  }
}

}  // namespace
}  // namespace lockstep
