// Module: a named set of parameters, and hooks around forward and backward.
// Knows neither ranks nor optimizers: whoever shards parameters does it through the hooks.
// Read next: layers.h.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/autograd.h"
#include "core/tensor.h"

namespace lockstep {

// How a parameter starts. Values depend on (seed, parameter name, element index) alone, so every
// rank draws the same ones, or only its shard of them.
struct Init {
  enum class Kind { normal, constant } kind;
  double value;  // standard deviation, or the constant
  static Init normal(double std) { return {Kind::normal, std}; }
  static Init constant(double value) { return {Kind::constant, value}; }
};

struct Factory {
  DType dtype;
  uint64_t seed;
  bool draws = true;  // false: parameters get neither values nor memory; see draw()
  Tensor parameter(const std::string& name, Shape shape, Init init) const;
};

// Writes the initial values of a parameter.
void draw(const NamedTensor& parameter, const Init& init, uint64_t seed);

class Module {
 public:
  explicit Module(std::string name) : name_(std::move(name)) {}
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  const std::string& name() const { return name_; }

  // This module's parameters and its children's, in order of registration: the order of their use
  // in forward, and so the reverse of the order in which their gradients arrive.
  std::vector<NamedTensor> parameters() const;
  std::vector<Init> inits() const;  // how they start
  // The modules directly inside, in order.
  const std::vector<Module*>& children() const { return children_; }

  // Of other modules' parameters, those that this one uses as well (a tied head).
  const std::vector<NamedTensor>& borrowed() const { return borrowed_; }

  // Called in order of registration. before_backward: when the gradient of the output is complete;
  // after_backward: when that of the input is. Recomputation happens between the two. A module
  // whose input has no gradient (token ids) has no hooks in backward, and must not need its
  // parameters there.
  struct Hooks {
    std::vector<std::function<void()>> before_forward, after_forward;
    std::vector<std::function<void()>> before_backward, after_backward;
  } hooks;

 protected:
  Tensor add_parameter(const Factory& make, std::string_view name, Shape shape, Init init);
  void add_child(Module& child) { children_.push_back(&child); }
  void borrow(NamedTensor parameter) { borrowed_.push_back(std::move(parameter)); }

  // forward(x) between this module's hooks; x may be integer.
  Tensor hooked(const Tensor& x, const std::function<Tensor(const Tensor&)>& forward) const;

 private:
  std::string name_;
  std::vector<NamedTensor> own_, borrowed_;
  std::vector<Init> inits_;  // of own_
  std::vector<Module*> children_;
};

}  // namespace lockstep
