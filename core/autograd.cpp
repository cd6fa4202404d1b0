// The engine. A backward pass first counts, for every node, the edges that lead to it; then it runs
// nodes whose count has reached zero, latest created first (a fixed order, and the one that frees
// activations soonest). Nothing here recurses, so a graph may be arbitrarily deep. Read next: ops/.
#include "core/autograd.h"

#include <algorithm>
#include <queue>
#include <unordered_map>
#include <utility>

#include "core/backend.h"

namespace lockstep {

namespace {

thread_local bool grad_off = false;
thread_local uint64_t next_order = 0;

struct NodeRemains {
  std::vector<std::shared_ptr<Node>> inputs;
  Rule rule;
};

// Destroying a node drops its inputs and what its rule saved, which may be the last handles of
// further nodes. Remains are queued and dropped in a loop, since recursion would overflow on deep
// graphs.
void bury(NodeRemains remains) {
  thread_local std::vector<NodeRemains> queue;
  thread_local bool digging = false;
  queue.push_back(std::move(remains));
  if (digging) return;
  digging = true;
  while (!queue.empty()) {
    NodeRemains last = std::move(queue.back());
    queue.pop_back();
  }
  digging = false;
}

}  // namespace

Node::Node(const char* op, Shape shape, DType dtype)
    : op(op), shape(std::move(shape)), dtype(dtype), order(next_order++) {}

Node::~Node() {
  if (!inputs.empty() || rule) bury({std::move(inputs), std::move(rule)});
}

void Leaf::release_grad() {
  grad = Tensor();
  has_grad_ = false;
}

class Engine {
 public:
  Engine() : parent_(current_) { current_ = this; }
  ~Engine() { current_ = parent_; }
  Engine(const Engine&) = delete;

  void run(const std::shared_ptr<Node>& root, const Tensor& dy) {
    count_edges(root);
    GradSlot(*this, root.get()).add(dy);
    states_.at(root.get()).pending = 1;
    edge_done(root);
    while (!ready_.empty()) {
      const std::shared_ptr<Node> node = ready_.top();
      ready_.pop();
      run_node(*node);
    }
  }

  Tensor& grad_of(Node* node) { return states_.at(node).grad; }

 private:
  struct State {
    int pending = 0;  // edges whose contribution has not been made
    Tensor grad;      // of inner nodes; leaves keep their own
  };
  struct Later {
    bool operator()(const std::shared_ptr<Node>& a, const std::shared_ptr<Node>& b) const {
      return a->order < b->order;
    }
  };

  void count_edges(const std::shared_ptr<Node>& root) {
    std::vector<Node*> stack{root.get()};
    states_.try_emplace(root.get());
    while (!stack.empty()) {
      Node* node = stack.back();
      stack.pop_back();
      check(node->is_leaf() || node->rule,
            "[backward] the graph of {} was already consumed; run forward again", node->op);
      for (const auto& input : node->inputs) {
        if (!input) continue;
        auto [it, first] = states_.try_emplace(input.get());
        it->second.pending++;
        if (first) stack.push_back(input.get());
      }
    }
  }

  void run_node(Node& node) {
    const Tensor dy = std::move(states_.at(&node).grad);
    running_ = &node;
    early_.clear();
    const Rule rule = std::move(node.rule);
    node.rule = nullptr;
    if (dy.defined()) {  // else no consumer contributed, and the gradient is zero
      Grads grads(*this, node);
      rule(dy, grads);
    }
    running_ = nullptr;
    for (auto& input : node.inputs) {
      if (!input) continue;
      if (auto done = std::find(early_.begin(), early_.end(), input.get()); done != early_.end())
        early_.erase(done);
      else
        edge_done(input);
    }
    node.inputs.clear();
  }

  void edge_done(const std::shared_ptr<Node>& node) {
    if (--states_.at(node.get()).pending > 0) return;
    if (node->is_leaf())
      leaf_ready(static_cast<Leaf&>(*node));
    else
      ready_.push(node);
  }

  // A leaf reached inside a recomputed region is also an input of that region's node in the outer
  // graph: that edge is done now, not only when the whole region is.
  void leaf_ready(Leaf& leaf) {
    if (parent_ && parent_->finish_early(&leaf)) return;
    for (const auto& hook : leaf.on_grad_ready) hook();
  }

  bool finish_early(Leaf* leaf) {
    if (!running_) return false;
    const auto& inputs = running_->inputs;
    const auto it = std::find_if(inputs.begin(), inputs.end(),
                                 [&](const auto& input) { return input.get() == leaf; });
    if (it == inputs.end()) return false;
    early_.push_back(leaf);
    if (--states_.at(leaf).pending == 0) leaf_ready(*leaf);
    return true;
  }

  inline static thread_local Engine* current_ = nullptr;
  Engine* parent_;
  std::unordered_map<Node*, State> states_;
  std::priority_queue<std::shared_ptr<Node>, std::vector<std::shared_ptr<Node>>, Later> ready_;
  Node* running_ = nullptr;
  std::vector<Node*> early_;  // leaf edges of running_ that are done already
};

Tensor GradSlot::destination(bool& accumulate) {
  if (node_->is_leaf()) {
    Leaf& leaf = static_cast<Leaf&>(*node_);
    if (!leaf.grad.defined()) {
      CategoryScope scope(Category::gradients);
      leaf.grad = leaf.bind_grad ? leaf.bind_grad() : Tensor::empty(leaf.shape, leaf.grad_dtype);
    }
    accumulate = std::exchange(leaf.has_grad_, true);
    return leaf.grad;
  }
  Tensor& grad = engine_.grad_of(node_);
  accumulate = grad.defined();
  if (!accumulate) {
    grad = Tensor::empty(node_->shape, node_->dtype);
  } else if (grad.storage().use_count() > 1 || !grad.contiguous()) {
    // Somebody else may read these elements: an adopted gradient is shared with its giver.
    Tensor own = Tensor::empty(node_->shape, node_->dtype);
    backend().copy(grad, own, false);
    grad = own;
  }
  return grad;
}

void GradSlot::add(const Tensor& g) {
  if (!needed()) return;
  check(g.shape() == node_->shape, "[backward] gradient {} for {} of shape {}", to_string(g),
        node_->op, to_string(node_->shape));
  if (!node_->is_leaf() && g.dtype() == node_->dtype) {
    if (Tensor& grad = engine_.grad_of(node_); !grad.defined()) {
      grad = g.detach();
      return;
    }
  }
  write([&](Tensor& dst, bool accumulate) { backend().copy(g, dst, accumulate); });
}

bool needs_grad(std::initializer_list<Tensor> inputs) {
  return !grad_off && std::any_of(inputs.begin(), inputs.end(),
                                  [](const Tensor& t) { return t.requires_grad(); });
}

Tensor record(const char* op, const Tensor& y, std::initializer_list<Tensor> inputs, Rule rule) {
  return record(op, y, std::span(inputs.begin(), inputs.size()), std::move(rule));
}

Tensor record(const char* op, const Tensor& y, std::span<const Tensor> inputs, Rule rule) {
  const auto wants = [](const Tensor& t) { return t.requires_grad(); };
  if (grad_off || std::none_of(inputs.begin(), inputs.end(), wants)) return y;
  auto node = std::make_shared<Node>(op, y.shape(), y.dtype());
  for (const Tensor& t : inputs) node->inputs.push_back(t.defined() ? t.node() : nullptr);
  node->rule = std::move(rule);
  return y.with_node(std::move(node));
}

void backward(const Tensor& root) {
  check(root.numel() == 1, "[backward] root {}; a scalar, or a gradient for it, is right",
        to_string(root));
  Tensor one = Tensor::empty(root.shape(), root.dtype());
  backend().fill(one, 1.0f);
  backward(root, one);
}

void backward(const Tensor& root, const Tensor& dy) {
  check(root.requires_grad(), "[backward] root {} depends on no leaf that requires a gradient",
        to_string(root));
  check(dy.shape() == root.shape() && dy.dtype() == root.dtype(),
        "[backward] gradient {} for root {}", to_string(dy), to_string(root));
  NoGrad no_grad;
  Engine().run(root.node(), dy);
}

namespace {
Tensor with_grad(const std::function<Tensor(const Tensor&)>& f, const Tensor& x) {
  struct Restore {
    bool previous = std::exchange(grad_off, false);
    ~Restore() { grad_off = previous; }
  } restore;
  return f(x);
}
}  // namespace

Tensor recompute(const Tensor& x, std::span<const Tensor> parameters,
                 std::function<Tensor(const Tensor&)> f) {
  Tensor y;
  {
    NoGrad no_grad;
    y = f(x.detach()).detach();
  }
  std::vector<Tensor> inputs{x};
  inputs.insert(inputs.end(), parameters.begin(), parameters.end());
  return record("recompute", y, inputs, [x = x.detach(), f](const Tensor& dy, Grads& grads) {
    Tensor again = x.detach();
    again.set_requires_grad(true).leaf().bind_grad = [shape = x.shape(), dtype = x.dtype()] {
      CategoryScope scope(Category::activations);  // it is one, although it lives in a leaf
      return Tensor::empty(shape, dtype);
    };
    backward(with_grad(f, again), dy);
    if (again.leaf().has_grad()) grads[0].add(again.grad());
  });
}

Tensor on_backward(const Tensor& x, std::function<void()> hook) {
  return record("on_backward", x.detach(), {x},
                [hook = std::move(hook)](const Tensor& dy, Grads& grads) {
                  hook();
                  grads[0].add(dy);
                });
}

NoGrad::NoGrad() : previous_(std::exchange(grad_off, true)) {}
NoGrad::~NoGrad() {
  grad_off = previous_;
}
bool NoGrad::active() {
  return grad_off;
}

}  // namespace lockstep
