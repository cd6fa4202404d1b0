// ModelConfig: the run config's section "model". Read next: gpt.h.
#pragma once

#include <cstdint>
#include <string>

#include "core/config_field.h"

namespace lockstep {

struct ModelConfig {
  std::string arch = "gpt2";
  int64_t n_layer = 6;
  int64_t n_head = 6;
  int64_t n_kv_head = 0;
  int64_t d_model = 384;
  int64_t d_ff = 0;
  int64_t vocab_size = 256;
  int64_t max_seq_len = 256;
  double dropout = 0.0;
  double rope_theta = 10000.0;
  std::string init_from = "";

  int64_t kv_heads() const { return n_kv_head > 0 ? n_kv_head : n_head; }
  int64_t head_dim() const { return d_model / n_head; }
  // 4 d_model for GPT-2; for Llama 8/3 of it, rounded up to a multiple of 64, so that three
  // matrices cost what GPT-2's two do.
  int64_t ff() const {
    if (d_ff > 0) return d_ff;
    return arch == "llama" ? (8 * d_model / 3 + 63) / 64 * 64 : 4 * d_model;
  }

  template <class V>
  void visit(V& v) {
    v("arch", arch,
      "gpt2: learned positions, LayerNorm, GELU, biases, tied head; llama: RoPE, RMSNorm, SwiGLU, "
      "untied head",
      Choices{"gpt2", "llama"});
    v("n_layer", n_layer, "transformer blocks", Range{1, 1e4});
    v("n_head", n_head, "query heads; divides d_model", Range{1, 1e4});
    v("n_kv_head", n_kv_head, "key and value heads (llama), divides n_head; 0: as many as n_head",
      Range{0, 1e4});
    v("d_model", d_model, "width of the residual stream", Range{1, 1e6});
    v("d_ff", d_ff, "width of the MLP; 0: 4 d_model (gpt2), 8/3 d_model rounded up to 64 (llama)",
      Range{0, 1e7});
    v("vocab_size", vocab_size, "tokens the model knows; at least the tokenizer's", Range{2, 1e9});
    v("max_seq_len", max_seq_len, "longest sequence the model takes", Range{1, 1e8});
    v("dropout", dropout, "share of activations dropped after embedding, attention and MLP",
      Range{0, 0.99});
    v("rope_theta", rope_theta, "base of the rotary frequencies (llama)", Range{1, 1e12});
    v("init_from", init_from,
      "what the weights start from: a checkpoint folder, or a file of `trainer export`; empty: "
      "random");
  }
};

}  // namespace lockstep
