// Autograd: the graph that ops record, and the engine that walks it backwards.
// One node per op output. An op's gradient rule is a closure beside its forward code (core/ops/);
// it writes each input's gradient through a GradSlot, so that a parameter's gradient lands in its
// final buffer (perhaps part of a communication bucket) without a copy. The engine is iterative and
// counts contributions exactly: a leaf's on_grad_ready fires once per backward, after the last of
// them. Read next: ops/linear.cpp for a rule, autograd.cpp for the engine.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "core/tensor.h"

namespace lockstep {

class Engine;
class Grads;

// Given the gradient of the output, contributes to the gradients of the inputs. Runs once, then it
// is dropped with everything it saved. Tensors it holds are handles: a parameter's memory is looked
// up when the rule runs, so it may have been released and gathered again since the forward pass.
using Rule = std::function<void(const Tensor& dy, Grads& grads)>;

struct Node {
  Node(const char* op, Shape shape, DType dtype);
  virtual ~Node();
  virtual bool is_leaf() const { return false; }

  const char* op;  // for messages
  Shape shape;     // of the output, and so of its gradient
  DType dtype;
  uint64_t order;                             // creation number: inputs have smaller ones
  std::vector<std::shared_ptr<Node>> inputs;  // null where no gradient is needed
  Rule rule;
};

// A tensor that the user owns: a parameter, or an input whose gradient is wanted.
struct Leaf : Node {
  Leaf(Shape shape, DType dtype) : Node("leaf", std::move(shape), dtype) {}
  bool is_leaf() const override { return true; }

  // The gradient, undefined until the first contribution binds it. Contributions of later backward
  // passes are added to it until reset_grad().
  Tensor grad;
  DType grad_dtype = DType::f32;  // of the buffer allocated by default
  // Gives the buffer (contiguous, fp32, contents undefined) at the first contribution after
  // grad was released; by default it is allocated.
  std::function<Tensor()> bind_grad;
  // Called in order, each once per backward pass that reaches this leaf, after its last
  // contribution.
  std::vector<std::function<void()>> on_grad_ready;

  bool has_grad() const { return has_grad_; }
  void reset_grad() { has_grad_ = false; }  // the next contribution overwrites; the buffer stays
  void release_grad();                      // the same, and the buffer is let go

 private:
  friend class GradSlot;
  bool has_grad_ = false;
};

// Where one input's gradient goes.
class GradSlot {
 public:
  bool needed() const { return node_ != nullptr; }

  // Contributes `g`, any strides, of the input's shape. It may be kept without a copy: do not write
  // to it after.
  void add(const Tensor& g);

  // Lets `kernel(dst, accumulate)` write straight into the gradient's buffer: contiguous, of the
  // input's shape; dst is fp32 for parameters, the input's type otherwise. With accumulate it adds
  // to dst, without it every element must be written.
  template <class Kernel>
  void write(Kernel&& kernel) {
    if (!needed()) return;
    bool accumulate = false;
    Tensor dst = destination(accumulate);
    kernel(dst, accumulate);
  }

 private:
  friend class Grads;
  friend class Engine;
  GradSlot(Engine& engine, Node* node) : engine_(engine), node_(node) {}
  Tensor destination(bool& accumulate);

  Engine& engine_;
  Node* node_;
};

class Grads {
 public:
  Grads(Engine& engine, const Node& node) : engine_(engine), node_(node) {}
  GradSlot operator[](int input) { return {engine_, node_.inputs[input].get()}; }

 private:
  Engine& engine_;
  const Node& node_;
};

// Called by every op with its finished output: returns y with a node if gradients are on and any
// input needs one, else y itself. `rule` may hold the y passed in, never the one returned (it would
// own itself).
Tensor record(const char* op, const Tensor& y, std::initializer_list<Tensor> inputs, Rule rule);
Tensor record(const char* op, const Tensor& y, std::span<const Tensor> inputs, Rule rule);

// Whether record() would record: lets an op skip what only its rule would need.
bool needs_grad(std::initializer_list<Tensor> inputs);

// Computes the gradients of all leaves that `root` depends on. `dy` is the gradient of root, by
// default 1 (root must then have one element). Consumes the graph.
void backward(const Tensor& root);
void backward(const Tensor& root, const Tensor& dy);

// y = f(x) without keeping f's intermediate results: they are computed again in backward
// (activation recomputation). `parameters` are all leaves inside f that need gradients. f must be a
// function: same input, same bits, dropout included.
Tensor recompute(const Tensor& x, std::span<const Tensor> parameters,
                 std::function<Tensor(const Tensor&)> f);

// x itself; calls `hook` in backward, when the gradient of x is complete.
Tensor on_backward(const Tensor& x, std::function<void()> hook);

// No graph is recorded by the calling thread while the guard lives.
class NoGrad {
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  static bool active();

 private:
  bool previous_;
};

}  // namespace lockstep
