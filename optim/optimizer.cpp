// SGD with momentum, AdamW, 1-bit Adam: in order of increasing complexity. Read next: schedule.cpp.
#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>

namespace lockstep {

namespace {

// A parameter with the fp32 values that its updates are computed on.
struct Target {
  std::string name;
  Tensor parameter;
  Tensor master;  // undefined for fp32 parameters, which are their own
  bool decays;

  explicit Target(const NamedTensor& p)
      : name(p.name), parameter(p.tensor.detach()), decays(p.tensor.ndim() >= 2) {
    if (parameter.dtype() == DType::f32) return;
    master = Tensor::empty(parameter.shape());
    backend().copy(parameter, master, false);
  }
  Tensor* master_or_null() { return master.defined() ? &master : nullptr; }
};

// What all optimizers share: targets, and named fp32 buffers that start at zero.
class FlatOptimizer : public Optimizer {
 public:
  FlatOptimizer(const OptimConfig& config, const std::vector<NamedTensor>& parameters)
      : config_(config) {
    CategoryScope scope(Category::optimizer);
    for (const NamedTensor& p : parameters) targets_.emplace_back(p);
  }

  std::vector<NamedTensor> state() const override {
    std::vector<NamedTensor> all;
    for (size_t i = 0; i < targets_.size(); ++i) {
      const Target& t = targets_[i];
      if (t.master.defined()) all.push_back({t.name + ".master", t.master});
      for (const auto& [suffix, buffers] : buffers_) all.push_back({t.name + suffix, buffers[i]});
    }
    return all;
  }

 protected:
  void add_buffer(const char* suffix) {
    CategoryScope scope(Category::optimizer);
    std::vector<Tensor> buffers;
    for (const Target& t : targets_) buffers.push_back(Tensor::zeros(t.parameter.shape()));
    buffers_.emplace_back(suffix, std::move(buffers));
  }
  const std::vector<Tensor>& buffers(size_t which) const { return buffers_[which].second; }
  Tensor& buffer(size_t which, size_t i) { return buffers_[which].second[i]; }
  float decay_of(const Target& t) const {
    return t.decays ? static_cast<float>(config_.weight_decay) : 0.0f;
  }
  void check_gradient(size_t i, const Tensor& grad) const {
    check(grad.dtype() == DType::f32 && grad.numel() == targets_[i].parameter.numel(),
          "[optimizer] gradient {} for {} {}", to_string(grad), targets_[i].name,
          to_string(targets_[i].parameter));
  }

  OptimConfig config_;
  std::vector<Target> targets_;

 private:
  std::vector<std::pair<const char*, std::vector<Tensor>>> buffers_;
};

// p -= lr (momentum buffer), buffer = momentum * buffer + grad + decay * p (PyTorch's form).
class Sgd : public FlatOptimizer {
 public:
  Sgd(const OptimConfig& config, const std::vector<NamedTensor>& parameters)
      : FlatOptimizer(config, parameters) {
    add_buffer(".momentum");
  }
  void prepare(StepScalars&, int64_t) const override {}
  void step(size_t i, const Tensor& grad, const StepScalars& scalars) override {
    check_gradient(i, grad);
    Target& t = targets_[i];
    backend().sgd({static_cast<float>(config_.momentum), decay_of(t)}, scalars, grad, t.parameter,
                  t.master_or_null(), buffer(0, i));
  }
};

// Loshchilov and Hutter, "Decoupled weight decay regularization" (2019).
class AdamW : public FlatOptimizer {
 public:
  AdamW(const OptimConfig& config, const std::vector<NamedTensor>& parameters)
      : FlatOptimizer(config, parameters) {
    add_buffer(".exp_avg");
    add_buffer(".exp_avg_sq");
  }
  void prepare(StepScalars& scalars, int64_t t) const override {
    scalars.bias_correction1 = static_cast<float>(1 - std::pow(config_.betas[0], t));
    scalars.bias_correction2 = static_cast<float>(1 - std::pow(config_.betas[1], t));
  }
  void step(size_t i, const Tensor& grad, const StepScalars& scalars) override {
    check_gradient(i, grad);
    Target& t = targets_[i];
    const AdamWOptions options{static_cast<float>(config_.betas[0]),
                               static_cast<float>(config_.betas[1]),
                               static_cast<float>(config_.eps), decay_of(t)};
    backend().adamw(options, scalars, grad, t.parameter, t.master_or_null(), buffer(0, i),
                    buffer(1, i));
  }
  std::vector<Tensor> second_moments() const override { return buffers(1); }
};

// Tang et al., "1-bit Adam" (2021): after a warm-up as AdamW the second moment is a constant, so
// the update is linear in the momentum and error feedback makes up for what a codec left out. What
// arrives then as the gradient is the momentum already: the ranks send theirs. The paper has them
// start from the common one; here each has its own, as in deep gradient compression (Lin et al.,
// 2018), because with sharded state no rank knows the common one. The paper has no bias
// corrections. Here they are AdamW's, the second moment's as of the step that froze it; after a
// warm-up long enough for the method both are 1.
class OnebitAdam : public AdamW {
 public:
  OnebitAdam(const OptimConfig& config, const std::vector<NamedTensor>& parameters,
             int64_t variance_steps)
      : AdamW(config, parameters), variance_steps_(variance_steps) {
    check(variance_steps > 0, "[optimizer] onebit_adam needs steps in which its variance moves");
  }
  void prepare(StepScalars& scalars, int64_t t) const override {
    AdamW::prepare(scalars, std::min(t, variance_steps_));
    const float correction2 = scalars.bias_correction2;
    AdamW::prepare(scalars, t);
    scalars.bias_correction2 = correction2;
    scalars.variance_frozen = t > variance_steps_;
  }

 private:
  const int64_t variance_steps_;
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimConfig& config,
                                          std::vector<NamedTensor> parameters,
                                          int64_t variance_steps) {
  if (config.name == "sgd") return std::make_unique<Sgd>(config, parameters);
  if (config.name == "adamw") return std::make_unique<AdamW>(config, parameters);
  if (config.name == "onebit_adam")
    return std::make_unique<OnebitAdam>(config, parameters, variance_steps);
  fail(Exit::config, "[optim.name] unknown optimizer \"{}\"; adamw, sgd or onebit_adam is right",
       config.name);
}

double state_bytes_per_element(const OptimConfig& config, DType dtype) {
  return (config.name == "sgd" ? 4 : 8) + (dtype == DType::f32 ? 0 : 4);
}

}  // namespace lockstep
