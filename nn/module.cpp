// Parameters, initial values, hooks. Read next: layers.cpp.
#include "nn/module.h"

#include "core/backend.h"
#include "core/init.h"

namespace lockstep {

namespace {
void call(const std::vector<std::function<void()>>& hooks) {
  for (const auto& hook : hooks) hook();
}
}  // namespace

Tensor Factory::parameter(const std::string& name, Shape shape, Init init) const {
  CategoryScope scope(Category::parameters);
  Tensor t = Tensor::empty(std::move(shape), dtype);
  if (draws)
    draw({name, t}, init, seed);
  else
    t.storage()->release();
  return t.set_requires_grad(true);
}

void draw(const NamedTensor& parameter, const Init& init, uint64_t seed) {
  Tensor t = parameter.tensor;
  if (init.kind == Init::Kind::normal)
    normal_(t, seed, parameter.name, init.value);
  else
    backend().fill(t, static_cast<float>(init.value));
}

std::vector<NamedTensor> Module::parameters() const {
  std::vector<NamedTensor> all = own_;
  for (const Module* child : children_) {
    const std::vector<NamedTensor> theirs = child->parameters();
    all.insert(all.end(), theirs.begin(), theirs.end());
  }
  return all;
}

std::vector<Init> Module::inits() const {
  std::vector<Init> all = inits_;
  for (const Module* child : children_) {
    const std::vector<Init> theirs = child->inits();
    all.insert(all.end(), theirs.begin(), theirs.end());
  }
  return all;
}

Tensor Module::add_parameter(const Factory& make, std::string_view name, Shape shape, Init init) {
  const std::string full = name_.empty() ? std::string(name) : name_ + "." + std::string(name);
  own_.push_back({full, make.parameter(full, std::move(shape), init)});
  inits_.push_back(init);
  return own_.back().tensor;
}

Tensor Module::hooked(const Tensor& x, const std::function<Tensor(const Tensor&)>& forward) const {
  call(hooks.before_forward);
  const bool differentiable = is_floating(x.dtype());
  const bool after = differentiable && !hooks.after_backward.empty();
  const bool before = differentiable && !hooks.before_backward.empty();
  const Tensor y = forward(after ? on_backward(x, [this] { call(hooks.after_backward); }) : x);
  call(hooks.after_forward);
  return before ? on_backward(y, [this] { call(hooks.before_backward); }) : y;
}

}  // namespace lockstep
