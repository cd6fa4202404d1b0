// Gpt: GPT-2 (learned positions, LayerNorm, GELU, biases, tied head) and Llama (rotary positions,
// RMSNorm, SwiGLU, grouped-query attention, untied head) from one ModelConfig.
// Sources: Radford et al. 2019; Touvron et al. 2023. Read next: gpt.cpp.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "nn/layers.h"

namespace lockstep {

// Arithmetic of one token, forward and backward, for MFU.
struct FlopsPerToken {
  double matmul;     // 6 N, N: parameters in a matrix product, a tied head once
  double attention;  // 6 L T C: of 12 L T C for scores and weighted sums, half is masked
  double total() const { return matmul + attention; }
};

class Gpt : public Module {
 public:
  // Parameters of `dtype` (fp32 or bf16), values from (seed, name). Without `draws` they have no
  // memory yet: for who cannot hold them all.
  Gpt(const ModelConfig& config, DType dtype, uint64_t seed, bool draws = true);

  // Sum over all tokens of the cross-entropy, fp32 [1], in nats. tokens, targets: (B, T) i32; a
  // target of -1 does not count.
  Tensor loss(const Tensor& tokens, const Tensor& targets, const ForwardContext& context);

  // Logits (B, V) fp32 of the token that follows the last position of tokens (B, T).
  Tensor next_token_logits(const Tensor& tokens);

  const ModelConfig& config() const { return config_; }
  int64_t parameter_count() const;
  FlopsPerToken flops_per_token(int64_t seq_len) const;

 private:
  Tensor hidden(const Tensor& tokens, const ForwardContext& context);  // (B, T, C), normalised

  // Token table, and for GPT-2 the position table.
  struct Embedding : Module {
    Embedding(const Factory& make, const ModelConfig& config);
    Tensor operator()(const Tensor& tokens) const;
    Tensor table;      // (V, C)
    Tensor positions;  // (max_seq_len, C), undefined for Llama
  };

  // The way back to tokens: a matrix of its own for Llama, the token table for GPT-2.
  struct Head : Module {
    Head(const Factory& make, const ModelConfig& config, const Embedding& embedding);
    Tensor loss(const Tensor& x, const Tensor& targets) const;  // x (B, T, C), sum of losses
    Tensor logits(const Tensor& x) const;                       // x (B, C) -> (B, V) fp32
    Tensor weight;                                              // (V, C)
  };

  ModelConfig config_;
  Embedding embedding_;
  Dropout dropout_;
  std::vector<std::unique_ptr<Block>> blocks_;
  Norm final_norm_;
  Head head_;
};

}  // namespace lockstep
