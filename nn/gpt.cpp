// The model from tokens to loss. Read next: ../optim/README.md.
#include "nn/gpt.h"

namespace lockstep {

Gpt::Embedding::Embedding(const Factory& make, const ModelConfig& config) : Module("") {
  table =
      add_parameter(make, "wte.weight", {config.vocab_size, config.d_model}, Init::normal(0.02));
  if (config.arch == "gpt2")
    positions =
        add_parameter(make, "wpe.weight", {config.max_seq_len, config.d_model}, Init::normal(0.02));
}

Tensor Gpt::Embedding::operator()(const Tensor& tokens) const {
  return hooked(tokens, [this](const Tensor& ids) {
    const Tensor x = embedding(table, ids);
    return positions.defined() ? add(x, slice(positions, 0, 0, ids.dim(1))) : x;
  });
}

Gpt::Head::Head(const Factory& make, const ModelConfig& config, const Embedding& embedding)
    : Module(config.arch == "llama" ? "lm_head" : "tied_head") {
  if (config.arch == "llama") {
    weight = add_parameter(make, "weight", {config.vocab_size, config.d_model}, Init::normal(0.02));
  } else {
    weight = embedding.table;
    borrow(embedding.parameters().front());
  }
}

Tensor Gpt::Head::loss(const Tensor& x, const Tensor& targets) const {
  return hooked(x, [&](const Tensor& h) {
    const Tensor rows = reshape(h, {targets.numel(), weight.dim(1)});
    return linear_cross_entropy(rows, weight, targets.view({targets.numel()}));
  });
}

Tensor Gpt::Head::logits(const Tensor& x) const {
  return hooked(x, [&](const Tensor& h) { return cast(linear(h, weight, Tensor()), DType::f32); });
}

Gpt::Gpt(const ModelConfig& config, DType dtype, uint64_t seed, bool draws)
    : Module(""),
      config_(config),
      embedding_({dtype, seed, draws}, config),
      dropout_("embedding.dropout", config.dropout),
      final_norm_("ln_f", {dtype, seed, draws}, config),
      head_({dtype, seed, draws}, config, embedding_) {
  const Factory make{dtype, seed, draws};
  add_child(embedding_);
  for (int64_t i = 0; i < config.n_layer; ++i) {
    blocks_.push_back(std::make_unique<Block>(fmt::format("h.{}", i), make, config));
    add_child(*blocks_.back());
  }
  add_child(final_norm_);
  add_child(head_);
}

Tensor Gpt::hidden(const Tensor& tokens, const ForwardContext& context) {
  check(tokens.ndim() == 2 && tokens.dim(1) <= config_.max_seq_len,
        "[gpt] tokens {}; (B, T) with T at most max_seq_len {} is right", to_string(tokens),
        config_.max_seq_len);
  Tensor x = dropout_(embedding_(tokens), context);
  for (const auto& block : blocks_) x = (*block)(x, context);
  return final_norm_(x);
}

Tensor Gpt::loss(const Tensor& tokens, const Tensor& targets, const ForwardContext& context) {
  return head_.loss(hidden(tokens, context), targets);
}

Tensor Gpt::next_token_logits(const Tensor& tokens) {
  NoGrad no_grad;
  const Tensor x = hidden(tokens, {});
  const int64_t last = tokens.dim(1) - 1;
  const Tensor at_last = contiguous(slice(x, 1, last, last + 1));
  return head_.logits(reshape(at_last, {tokens.dim(0), config_.d_model}));
}

int64_t Gpt::parameter_count() const {
  int64_t n = 0;
  for (const NamedTensor& p : parameters()) n += p.tensor.numel();
  return n;
}

FlopsPerToken Gpt::flops_per_token(int64_t seq_len) const {
  int64_t in_matmul = config_.vocab_size * config_.d_model;  // the head, tied or not
  for (const auto& block : blocks_)
    for (const NamedTensor& p : block->parameters())
      if (p.tensor.ndim() == 2) in_matmul += p.tensor.numel();
  return {6.0 * static_cast<double>(in_matmul),
          6.0 * static_cast<double>(config_.n_layer * seq_len * config_.d_model)};
}

}  // namespace lockstep
