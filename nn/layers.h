// The layers of a GPT: each owns its parameters and is one call of an op, or a few.
// B samples, T positions, C = d_model, F = d_ff, V = vocab_size. Read next: gpt.h.
#pragma once

#include <memory>
#include <optional>

#include "core/backend.h"
#include "core/ops.h"
#include "nn/config.h"
#include "nn/module.h"

namespace lockstep {

// What a forward pass needs beside its input.
struct ForwardContext {
  bool training = false;                 // dropout is on
  bool recompute = false;                // blocks keep only their input for backward
  uint64_t seed = 0;                     // dropout's
  const StepScalars* scalars = nullptr;  // of the micro-step; needed when training with dropout
};

class Linear : public Module {
 public:
  Linear(std::string name, const Factory& make, int64_t in, int64_t out, bool bias, double std);
  Tensor operator()(const Tensor& x) const { return linear(x, weight, bias); }

  Tensor weight;  // (out, in)
  Tensor bias;    // (out), undefined without
};

// LayerNorm with weight and bias for GPT-2, RMSNorm for Llama.
class Norm : public Module {
 public:
  Norm(std::string name, const Factory& make, const ModelConfig& config);
  Tensor operator()(const Tensor& x) const;

 private:
  Tensor weight_, bias_;  // (C)
};

class Dropout : public Module {
 public:
  Dropout(std::string name, double p) : Module(std::move(name)), p_(p) {}
  Tensor operator()(const Tensor& x, const ForwardContext& context) const;

 private:
  double p_;
};

// Causal self-attention with grouped-query heads; rotary positions for Llama.
class Attention : public Module {
 public:
  Attention(std::string name, const Factory& make, const ModelConfig& config);
  Tensor operator()(const Tensor& x,
                    const ForwardContext& context) const;  // (B, T, C) -> (B, T, C)

 private:
  Heads heads_;
  Linear qkv_, proj_;
  Dropout dropout_;
  std::optional<RopeTables> rotation_;  // Llama only
};

// GPT-2: proj(gelu(fc(x))). Llama: down(silu(gate(x)) * up(x)), gate and up in one matrix.
class Mlp : public Module {
 public:
  Mlp(std::string name, const Factory& make, const ModelConfig& config);
  Tensor operator()(const Tensor& x, const ForwardContext& context) const;

 private:
  bool llama_;
  Linear up_, down_;
  Dropout dropout_;
};

// A pre-norm transformer block: x + attention(norm(x)), then x + mlp(norm(x)).
class Block : public Module {
 public:
  Block(std::string name, const Factory& make, const ModelConfig& config);
  Tensor operator()(const Tensor& x, const ForwardContext& context) const;

 private:
  Tensor forward(const Tensor& x, const ForwardContext& context) const;

  Norm norm_1_, norm_2_;
  Attention attention_;
  Mlp mlp_;
  std::vector<Tensor> leaves_;
};

}  // namespace lockstep
