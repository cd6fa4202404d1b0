// Layers of GPT-2 and Llama. Parameter names are nanoGPT's and Llama's own, so that weights
// exchanged with Python need no table. Read next: gpt.cpp.
#include "nn/layers.h"

#include <cmath>

#include "core/philox.h"

namespace lockstep {

namespace {

constexpr double weight_std = 0.02;
constexpr float norm_eps = 1e-5f;

bool is_llama(const ModelConfig& config) {
  return config.arch == "llama";
}

// GPT-2's rule: projections into the residual stream start smaller, by the number of additions to
// it.
double residual_std(const ModelConfig& config) {
  return weight_std / std::sqrt(2.0 * config.n_layer);
}

Heads heads_of(const ModelConfig& config) {
  return {config.n_head, config.kv_heads(), config.d_model / config.n_head};
}

}  // namespace

Linear::Linear(std::string name, const Factory& make, int64_t in, int64_t out, bool with_bias,
               double std)
    : Module(std::move(name)) {
  weight = add_parameter(make, "weight", {out, in}, Init::normal(std));
  if (with_bias) bias = add_parameter(make, "bias", {out}, Init::constant(0));
}

Norm::Norm(std::string name, const Factory& make, const ModelConfig& config)
    : Module(std::move(name)) {
  weight_ = add_parameter(make, "weight", {config.d_model}, Init::constant(1));
  if (!is_llama(config)) bias_ = add_parameter(make, "bias", {config.d_model}, Init::constant(0));
}

Tensor Norm::operator()(const Tensor& x) const {
  return hooked(x, [this](const Tensor& h) {
    return bias_.defined() ? layer_norm(h, weight_, bias_, norm_eps)
                           : rms_norm(h, weight_, norm_eps);
  });
}

Tensor Dropout::operator()(const Tensor& x, const ForwardContext& context) const {
  if (p_ == 0 || !context.training) return x;
  return dropout(x, static_cast<float>(p_), {stream_key(context.seed, name()), context.scalars});
}

Attention::Attention(std::string name, const Factory& make, const ModelConfig& config)
    : Module(std::move(name)),
      heads_(heads_of(config)),
      qkv_(this->name() + ".c_attn", make, config.d_model, heads_.packed(), !is_llama(config),
           weight_std),
      proj_(this->name() + ".c_proj", make, config.d_model, config.d_model, !is_llama(config),
            residual_std(config)),
      dropout_(this->name() + ".dropout", config.dropout) {
  add_child(qkv_);
  add_child(proj_);
  if (is_llama(config))
    rotation_ = rope_tables(config.max_seq_len, heads_.head_dim, config.rope_theta);
}

Tensor Attention::operator()(const Tensor& x, const ForwardContext& context) const {
  Tensor qkv = qkv_(x);  // (B, T, (H + 2 H_kv) D)
  if (rotation_) qkv = rope(qkv, *rotation_, heads_);
  return dropout_(proj_(causal_attention(qkv, heads_)), context);
}

Mlp::Mlp(std::string name, const Factory& make, const ModelConfig& config)
    : Module(std::move(name)),
      llama_(is_llama(config)),
      up_(this->name() + (llama_ ? ".gate_up" : ".c_fc"), make, config.d_model,
          llama_ ? 2 * config.ff() : config.ff(), !llama_, weight_std),
      down_(this->name() + ".c_proj", make, config.ff(), config.d_model, !llama_,
            residual_std(config)),
      dropout_(this->name() + ".dropout", config.dropout) {
  add_child(up_);
  add_child(down_);
}

Tensor Mlp::operator()(const Tensor& x, const ForwardContext& context) const {
  const Tensor y =
      llama_ ? down_(swiglu(up_(x)))
             : mlp_gelu(x, up_.weight, up_.bias, down_.weight, down_.bias, GeluKind::tanh);
  return dropout_(y, context);
}

Block::Block(std::string name, const Factory& make, const ModelConfig& config)
    : Module(std::move(name)),
      norm_1_(this->name() + ".ln_1", make, config),
      norm_2_(this->name() + ".ln_2", make, config),
      attention_(this->name() + ".attn", make, config),
      mlp_(this->name() + ".mlp", make, config) {
  add_child(norm_1_);
  add_child(attention_);
  add_child(norm_2_);
  add_child(mlp_);
  for (const NamedTensor& p : parameters()) leaves_.push_back(p.tensor);
}

// Hooks around the recomputed forward pass are those of backward.
Tensor Block::operator()(const Tensor& x, const ForwardContext& context) const {
  const auto f = [this, context](const Tensor& h) { return forward(h, context); };
  return hooked(
      x, [&](const Tensor& in) { return context.recompute ? recompute(in, leaves_, f) : f(in); });
}

Tensor Block::forward(const Tensor& x, const ForwardContext& context) const {
  const Tensor h = add(x, attention_(norm_1_(x), context));
  return add(h, mlp_(norm_2_(h), context));
}

}  // namespace lockstep
