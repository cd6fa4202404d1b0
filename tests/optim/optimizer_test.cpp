// Optimizers against double-precision code of the papers' formulas. AdamW against PyTorch over a
// whole model is in tests/nn/golden_test.cpp.
#include "optim/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "optim/schedule.h"

namespace lockstep {
namespace {

constexpr int n = 37, steps = 5;
constexpr double eps32 = 0x1p-23;

std::vector<float> values(double seed) {
  std::vector<float> v(n);
  for (int i = 0; i < n; ++i) v[i] = static_cast<float>(std::sin(seed + 0.7 * i));
  return v;
}

StepScalars scalars_of(const Optimizer& optimizer, int t) {
  StepScalars s;
  s.lr = 0.01f;
  s.grad_scale = 0.5f;
  optimizer.prepare(s, t);
  return s;
}

TEST(Sgd, MatchesTheFormulaInDouble) {
  OptimConfig c;
  c.name = "sgd", c.momentum = 0.9, c.weight_decay = 0.1;
  Tensor matrix = Tensor::from(values(1), {n, 1}), vector = Tensor::from(values(1), {n});
  auto optimizer = make_optimizer(c, {{"matrix", matrix}, {"vector", vector}});
  std::vector<double> p0(n), p1(n), b0(n, 0), b1(n, 0);
  for (int i = 0; i < n; ++i) p0[i] = p1[i] = values(1)[i];
  for (int t = 1; t <= steps; ++t) {
    const std::vector<float> g = values(10 + t);
    const StepScalars s = scalars_of(*optimizer, t);
    optimizer->step(0, Tensor::from(g, {n, 1}), s);
    optimizer->step(1, Tensor::from(g, {n}), s);
    for (int i = 0; i < n; ++i) {
      b0[i] = 0.9 * b0[i] + 0.5 * g[i] + 0.1 * p0[i], p0[i] -= 0.01 * b0[i];
      b1[i] = 0.9 * b1[i] + 0.5 * g[i], p1[i] -= 0.01 * b1[i];  // one dimension: no decay
    }
  }
  for (int i = 0; i < n; ++i) {
    EXPECT_NEAR(matrix.data<float>()[i], p0[i], 8 * steps * eps32) << i;
    EXPECT_NEAR(vector.data<float>()[i], p1[i], 8 * steps * eps32) << i;
  }
}

TEST(AdamW, Bf16ParametersFollowTheirMasters) {
  OptimConfig c;
  c.name = "adamw", c.betas = {0.9, 0.95}, c.eps = 1e-8, c.weight_decay = 0.1;
  Tensor p = Tensor::empty({n, 1}, DType::bf16);
  backend().copy(Tensor::from(values(3), {n, 1}), p, false);
  std::vector<double> master(n), m(n, 0), v(n, 0);
  for (int i = 0; i < n; ++i) master[i] = to_float(p.data<bf16>()[i]);
  auto optimizer = make_optimizer(c, {{"p", p}});
  for (int t = 1; t <= steps; ++t) {
    const std::vector<float> g = values(20 + t);
    optimizer->step(0, Tensor::from(g, {n, 1}), scalars_of(*optimizer, t));
    for (int i = 0; i < n; ++i) {
      const double gi = 0.5 * g[i];
      m[i] = 0.9 * m[i] + 0.1 * gi, v[i] = 0.95 * v[i] + 0.05 * gi * gi;
      const double mh = m[i] / (1 - std::pow(0.9, t)), vh = v[i] / (1 - std::pow(0.95, t));
      master[i] = master[i] * (1 - 0.01 * 0.1) - 0.01 * mh / (std::sqrt(vh) + 1e-8);
    }
  }
  const std::vector<NamedTensor> state = optimizer->state();
  ASSERT_EQ(state.size(), 3u);
  EXPECT_EQ(state[0].name, "p.master");
  for (int i = 0; i < n; ++i) {
    const float own = state[0].tensor.data<float>()[i];
    EXPECT_NEAR(own, master[i], 16 * steps * eps32) << i;
    EXPECT_EQ(p.data<bf16>()[i].bits, to_bf16(own).bits) << i;
  }
}

TEST(Optimizer, SkipChangesNothing) {
  for (const char* name : {"sgd", "adamw"}) {
    OptimConfig c;
    c.name = name;
    Tensor p = Tensor::from(values(1), {n, 1});
    auto optimizer = make_optimizer(c, {{"p", p}});
    StepScalars s = scalars_of(*optimizer, 1);
    s.skip = 1;
    optimizer->step(0, Tensor::from(std::vector<float>(n, std::nanf("")), {n, 1}), s);
    EXPECT_EQ(p.to_vector<float>(), values(1)) << name;
    for (const NamedTensor& t : optimizer->state())
      EXPECT_EQ(t.tensor.to_vector<float>(), std::vector<float>(n, 0)) << t.name;
  }
}

TEST(Optimizer, NamesWhatIsWrong) {
  OptimConfig c;
  Tensor p = Tensor::from(values(1), {n});
  auto optimizer = make_optimizer(c, {{"p", p}});
  try {
    optimizer->step(0, Tensor::zeros({n + 1}), {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "[optimizer] gradient f32[38] for p f32[37]");
  }
}

}  // namespace
}  // namespace lockstep
