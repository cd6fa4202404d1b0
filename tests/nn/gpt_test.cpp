// The model's promises: names and initial values, what recomputation and dropout may change
// (nothing), the count of operations. Values against PyTorch are in golden_test.cpp.
#include "nn/gpt.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/ops.h"

namespace lockstep {
namespace {

ModelConfig tiny(const std::string& arch) {
  ModelConfig c;
  c.arch = arch;
  c.n_layer = 2, c.n_head = 4, c.d_model = 16, c.vocab_size = 48, c.max_seq_len = 12;
  if (arch == "llama") c.n_kv_head = 2, c.d_ff = 40;
  return c;
}

Tensor ids(int64_t rows, int64_t columns, int step) {
  std::vector<int32_t> v(rows * columns);
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<int32_t>(i * step % 48);
  return Tensor::from(v, {rows, columns});
}

std::vector<std::vector<float>> gradients(Gpt& model, const ForwardContext& context) {
  backward(model.loss(ids(3, 12, 7), ids(3, 12, 11), context));
  std::vector<std::vector<float>> all;
  for (const NamedTensor& p : model.parameters()) {
    all.push_back(p.tensor.grad().to_vector<float>());
    p.tensor.leaf().release_grad();
  }
  return all;
}

TEST(Gpt, InitialValuesDependOnSeedAndNameAlone) {
  ModelConfig small = tiny("gpt2"), deep = tiny("gpt2");
  deep.n_layer = 5;
  Gpt a(small, DType::f32, 7), b(deep, DType::f32, 7), other(small, DType::f32, 8);
  std::map<std::string, std::vector<float>> in_deep;
  for (const NamedTensor& p : b.parameters()) in_deep[p.name] = p.tensor.to_vector<float>();
  for (const std::string name : {"wte.weight", "h.1.attn.c_attn.weight", "h.0.mlp.c_fc.weight"}) {
    for (const NamedTensor& p : a.parameters())
      if (p.name == name) {
        EXPECT_EQ(p.tensor.to_vector<float>(), in_deep.at(name)) << name;
      }
    for (const NamedTensor& p : other.parameters())
      if (p.name == name) {
        EXPECT_NE(p.tensor.to_vector<float>(), in_deep.at(name)) << name;
      }
  }
}

TEST(Gpt, InitialValuesHaveTheRightSpread) {
  ModelConfig c = tiny("gpt2");
  c.vocab_size = 4096;
  Gpt model(c, DType::f32, 1);
  for (const NamedTensor& p : model.parameters()) {
    double sum = 0, squares = 0;
    for (float x : p.tensor.to_vector<float>()) sum += x, squares += x * x;
    const double n = static_cast<double>(p.tensor.numel()), spread = std::sqrt(squares / n);
    const bool residual = p.name.ends_with("c_proj.weight");
    const double std = residual ? 0.02 / std::sqrt(4.0) : 0.02;
    if (p.tensor.ndim() == 2) {
      EXPECT_NEAR(spread, std, 5 * std / std::sqrt(2 * n)) << p.name;  // 5 standard errors
      EXPECT_NEAR(sum / n, 0, 5 * std / std::sqrt(n)) << p.name;
    }
  }
}

TEST(Gpt, FirstLossIsThatOfAGuess) {
  for (const char* arch : {"gpt2", "llama"}) {
    Gpt model(tiny(arch), DType::f32, 1);
    const double loss = model.loss(ids(3, 12, 7), ids(3, 12, 11), {}).item<float>() / 36;
    EXPECT_NEAR(loss, std::log(48.0), 0.1) << arch;
  }
}

TEST(Gpt, RecomputationChangesNoBit) {
  StepScalars scalars;
  scalars.step = 3;
  scalars.first_sample = 40;
  for (const char* arch : {"gpt2", "llama"})
    for (DType dtype : {DType::f32, DType::bf16}) {
      ModelConfig c = tiny(arch);
      c.dropout = 0.3;
      Gpt model(c, dtype, 1);
      ForwardContext context{.training = true, .seed = 5, .scalars = &scalars};
      const auto plain = gradients(model, context);
      context.recompute = true;
      EXPECT_EQ(gradients(model, context), plain) << arch << " " << name_of(dtype);
      scalars.step++;
      EXPECT_NE(gradients(model, context), plain) << "dropout must change with the step";
      scalars.step--;
    }
}

TEST(Gpt, DropoutDependsOnTheGlobalSampleNotOnTheBatch) {
  ModelConfig c = tiny("gpt2");
  c.dropout = 0.5;
  Gpt model(c, DType::f32, 1);
  StepScalars scalars;
  const auto loss = [&](const Tensor& x, const Tensor& y, int64_t first) {
    NoGrad no_grad;
    scalars.first_sample = first;
    return model.loss(x, y, {.training = true, .seed = 5, .scalars = &scalars}).item<float>();
  };
  const Tensor x = ids(2, 12, 7), y = ids(2, 12, 11);
  const double both = loss(x, y, 8);
  const double first = loss(x.rows(0, 1), y.rows(0, 1), 8),
               second = loss(x.rows(1, 2), y.rows(1, 2), 9);
  EXPECT_NEAR(both, first + second, 24 * 4 * 0x1p-20);
  EXPECT_NE(loss(x.rows(1, 2), y.rows(1, 2), 8), second);
}

TEST(Gpt, ReadinessFiresOncePerParameterAndTheTiedTableLast) {
  for (bool recompute : {false, true}) {
    Gpt model(tiny("gpt2"), DType::f32, 1);
    std::vector<std::string> order;
    for (const NamedTensor& p : model.parameters())
      p.tensor.leaf().on_grad_ready.push_back([&order, name = p.name] { order.push_back(name); });
    backward(model.loss(ids(3, 12, 7), ids(3, 12, 11), {.recompute = recompute}));
    EXPECT_EQ(order.size(), model.parameters().size());
    EXPECT_EQ(order.back(), "wte.weight");
    EXPECT_TRUE(order.front().starts_with("ln_f")) << order.front();
  }
}

TEST(Gpt, HooksRunAroundForwardAndAroundBackwardWithItsRecomputation) {
  for (bool recompute : {false, true}) {
    Gpt model(tiny("gpt2"), DType::f32, 1);
    std::string events;
    Module& block = *model.children()[2];  // embedding, h.0, h.1
    ASSERT_EQ(block.name(), "h.1");
    block.hooks.before_forward.push_back([&] { events += "f"; });
    block.hooks.after_forward.push_back([&] { events += "F"; });
    block.hooks.before_backward.push_back([&] { events += "b"; });
    block.hooks.after_backward.push_back([&] { events += "B"; });
    backward(model.loss(ids(3, 12, 7), ids(3, 12, 11), {.recompute = recompute}));
    EXPECT_EQ(events, "fFbB");
  }
}

TEST(Gpt, CountsOperations) {
  Gpt model(tiny("gpt2"), DType::f32, 1);
  // Per block 12 C^2 in four matrices, and the head's V C.
  EXPECT_EQ(model.flops_per_token(12).matmul, 6.0 * (2 * 12 * 16 * 16 + 48 * 16));
  EXPECT_EQ(model.flops_per_token(12).attention, 6.0 * 2 * 12 * 16);
  EXPECT_EQ(model.parameter_count(), 7552);  // as many as PyTorch counts in make_goldens.py
  EXPECT_EQ(Gpt(tiny("llama"), DType::f32, 1).parameter_count(), 6992);
}

TEST(Gpt, RefusesTooLongASequence) {
  Gpt model(tiny("gpt2"), DType::f32, 1);
  try {
    model.loss(ids(1, 13, 7), ids(1, 13, 11), {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "[gpt] tokens i32[1, 13]; (B, T) with T at most max_seq_len 12 is right");
  }
}

}  // namespace
}  // namespace lockstep
