// A tiny GPT-2 and a tiny Llama against PyTorch in double precision (make_goldens.py): logits,
// every gradient, ten steps of AdamW.
//
// Tolerances. With fp32 arithmetic a value that is a sum of n products of size s carries an error
// of about sqrt(n) s eps; the longest sums here have 64 terms and pass through some 20 operations,
// so values of size s are held to 64 sqrt(20) s eps, about 300 s eps. AdamW divides by the root of
// the second moment, so that after ten steps an error relative to the *gradient* stands relative to
// lr; weights are held to that.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/ops.h"
#include "examples/safetensors.h"
#include "nn/gpt.h"
#include "optim/optimizer.h"

namespace lockstep {
namespace {

constexpr float eps32 = 0x1p-23f;

ModelConfig config_of(const std::string& arch) {
  ModelConfig c;
  c.arch = arch;
  c.n_layer = 2, c.n_head = 4, c.d_model = 16, c.vocab_size = 48, c.max_seq_len = 12;
  if (arch == "llama") c.n_kv_head = 2, c.d_ff = 40;
  return c;
}

void expect_close(const Tensor& ours, const Tensor& theirs, float relative,
                  const std::string& what) {
  ASSERT_EQ(ours.shape(), theirs.shape()) << what;
  const std::vector<float> a = ours.to_vector<float>(), b = theirs.to_vector<float>();
  float size = 0, worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    size = std::max(size, std::fabs(b[i]));
    worst = std::max(worst, std::fabs(a[i] - b[i]));
  }
  EXPECT_LE(worst, relative * size) << what << ", of size " << size;
}

class Golden : public testing::TestWithParam<std::string> {
 protected:
  Golden()
      : file_(LOCKSTEP_SOURCE_DIR "/tests/nn/goldens/" + GetParam() + ".safetensors"),
        model_(config_of(GetParam()), DType::f32, 0),
        tokens_(file_.load("tokens")),
        targets_(file_.load("targets")) {
    for (const NamedTensor& p : model_.parameters()) file_.read("weight/" + p.name, p.tensor);
  }

  SafetensorsFile file_;
  Gpt model_;
  Tensor tokens_, targets_;
};

TEST_P(Golden, NextTokenLogits) {
  const Tensor all = file_.load("logits");  // (2, 12, 48)
  for (int64_t t = 1; t <= 12; ++t) {
    const Tensor prefix = contiguous(slice(tokens_, 1, 0, t));
    const Tensor theirs = contiguous(slice(all, 1, t - 1, t)).view({2, 48});
    expect_close(model_.next_token_logits(prefix), theirs, 300 * eps32, "logits");
  }
}

TEST_P(Golden, EveryGradient) {
  backward(scale(model_.loss(tokens_, targets_, {}), 1.0f / 24));
  for (const NamedTensor& p : model_.parameters())
    expect_close(p.tensor.grad(), file_.load("grad/" + p.name), 300 * eps32, p.name);
}

TEST_P(Golden, TenStepsOfAdamW) {
  OptimConfig c;
  c.lr = 1e-2, c.betas = {0.9, 0.95}, c.eps = 1e-8, c.weight_decay = 0.1;
  const std::vector<NamedTensor> parameters = model_.parameters();
  auto optimizer = make_optimizer(c, parameters);
  const std::vector<float> losses = file_.load("losses").to_vector<float>();
  for (int t = 1; t <= 10; ++t) {
    const Tensor loss = model_.loss(tokens_, targets_, {});
    EXPECT_NEAR(loss.item<float>() / 24, losses[t - 1], 1000 * eps32 * losses[0]) << "step " << t;
    backward(scale(loss, 1.0f / 24));
    StepScalars scalars;
    scalars.lr = 1e-2f;
    optimizer->prepare(scalars, t);
    for (size_t i = 0; i < parameters.size(); ++i) {
      optimizer->step(i, parameters[i].tensor.grad(), scalars);
      parameters[i].tensor.leaf().reset_grad();
    }
  }
  for (const NamedTensor& p : parameters) {
    Tensor ours = p.tensor.detach(), theirs = file_.load("after/" + p.name);
    if (p.name.ends_with("c_attn.bias")) {
      // A key bias adds the same to all scores of a query, so its gradient is zero but for
      // rounding, which AdamW scales up to steps of lr. Only the queries' and values' parts are
      // determined.
      expect_close(ours.rows(0, 16), theirs.rows(0, 16), 1e-3f, p.name + " (queries)");
      ours = ours.rows(32, 48), theirs = theirs.rows(32, 48);
    }
    // An element whose gradient is nearly zero in every step may move by another share of lr per
    // step.
    expect_close(ours, theirs, 1e-3f, p.name);
  }
}

INSTANTIATE_TEST_SUITE_P(Arch, Golden, testing::Values("gpt2", "llama"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace lockstep
