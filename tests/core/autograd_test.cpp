// The engine: order and number of contributions, hooks, deep graphs, recomputation, buffers. The
// rules of single ops are checked by op_rows.h's tables.
#include <gtest/gtest.h>

#include "core/ops.h"
#include "core/parallel.h"
#include "tests/core/expect_error.h"
#include "tests/core/op_suite.h"

namespace lockstep {
namespace {

using op_suite::make_tensor;
using op_suite::random_values;
using op_suite::values_of;
using Values = std::vector<float>;

class Autograd : public testing::Test {
 protected:
  Autograd() { set_num_threads(1); }

  static Tensor leaf(const Values& values) {
    return Tensor::from(values, {static_cast<int64_t>(values.size())}).set_requires_grad(true);
  }
  static Tensor random_leaf(const Shape& shape, uint64_t seed, DType dtype = DType::f32) {
    return make_tensor(random_values(numel(shape), seed, -1, 1), shape, dtype)
        .set_requires_grad(true);
  }
  static Values grad(const Tensor& t) { return t.grad().to_vector<float>(); }

  // Appends `name` to events_ whenever t's gradient is ready.
  void watch(const Tensor& t, const std::string& name) {
    t.leaf().on_grad_ready.push_back([this, name] { events_.push_back(name); });
  }

  std::vector<std::string> events_;
};

TEST_F(Autograd, TiedLeafIsReadyOnceAfterItsLastContribution) {
  const Tensor w = leaf({2, 3}), first = leaf({1, 1});
  Values at_ready;
  w.leaf().on_grad_ready.push_back([&] { at_ready = grad(w); });
  watch(w, "w");
  watch(first, "first");
  // w is used last and first, so its contributions come at both ends of the backward pass.
  backward(sum(mul(mul(add(first, w), first), w)));
  EXPECT_EQ(events_, (std::vector<std::string>{"first", "w"}));
  // d/dw of (1 + w) w = 1 + 2 w
  EXPECT_EQ(at_ready, (Values{5, 7}));
}

TEST_F(Autograd, SameTensorTwiceInOneOpCountsTwice) {
  const Tensor w = leaf({3});
  watch(w, "w");
  backward(mul(w, w));
  EXPECT_EQ(grad(w), Values{6});
  EXPECT_EQ(events_.size(), 1u);
}

TEST_F(Autograd, ReadyHooksRunInTheOrderTheyWereAdded) {
  const Tensor w = leaf({1});
  for (const char* name : {"a", "b", "c"}) watch(w, name);
  backward(neg(w));
  EXPECT_EQ(events_, (std::vector<std::string>{"a", "b", "c"}));
  backward(neg(w));
  EXPECT_EQ(events_.size(), 6u);
}

TEST_F(Autograd, LeafThatIsOnlyReachedThroughSilentRulesIsReadyWithoutGradient) {
  const Tensor w = leaf({1}), other = leaf({1});
  watch(w, "w");
  const Tensor silent = record("silent", w.detach(), {w}, [](const Tensor&, Grads&) {});
  backward(add(other, neg(silent)));
  EXPECT_EQ(events_, std::vector<std::string>{"w"});
  EXPECT_FALSE(w.leaf().has_grad());
  EXPECT_FALSE(w.grad().defined());
}

TEST_F(Autograd, LaterPassesAddUntilReset) {
  const Tensor w = leaf({1, 2});
  backward(sum(square(w)));
  const void* buffer = w.grad().raw();
  backward(sum(scale(w, 10)));
  EXPECT_EQ(grad(w), (Values{12, 14}));
  w.leaf().reset_grad();
  EXPECT_FALSE(w.leaf().has_grad());
  backward(sum(scale(w, 10)));
  EXPECT_EQ(grad(w), (Values{10, 10}));
  EXPECT_EQ(w.grad().raw(), buffer);
  w.leaf().release_grad();
  EXPECT_FALSE(w.grad().defined());
}

TEST_F(Autograd, BoundBufferIsWrittenInPlaceAndBoundAgainAfterRelease) {
  Tensor bucket = Tensor::zeros({100});
  const Tensor w = random_leaf({3, 4}, 1, DType::bf16), x = random_leaf({2, 4}, 2, DType::bf16);
  int bound = 0;
  w.leaf().bind_grad = [&] {
    ++bound;
    return Tensor::over(bucket.storage(), 16, {3, 4}, DType::f32);
  };
  backward(sum(linear(x, w)));
  EXPECT_EQ(bound, 1);
  EXPECT_EQ(w.grad().data<float>(), bucket.data<float>() + 16);
  for (int64_t i = 0; i < 12; ++i)  // dw = sum of x's rows, exact in fp32: bf16 has 8 digits
    EXPECT_EQ(bucket.data<float>()[16 + i], values_of(x)[i % 4] + values_of(x)[4 + i % 4]);
  EXPECT_EQ(bucket.data<float>()[15], 0);
  EXPECT_EQ(bucket.data<float>()[28], 0);
  w.leaf().release_grad();
  backward(sum(linear(x, w)));
  EXPECT_EQ(bound, 2);
}

TEST_F(Autograd, MillionNodesInARow) {
  const Tensor w = leaf({1});
  const auto chain = [&] {
    Tensor y = w;
    for (int i = 0; i < 1'000'000; ++i)
      y = record("link", y.detach(), {y}, [](const Tensor& dy, Grads& grads) { grads[0].add(dy); });
    return y;
  };
  backward(chain());
  EXPECT_EQ(grad(w), Values{1});
  { const Tensor dropped = chain(); }  // destroyed without a backward pass
}

TEST_F(Autograd, SharedGradientIsCopiedBeforeItIsAddedTo) {
  const Tensor p = leaf({1, 2}), q = leaf({3, 4});
  const Tensor a = neg(p), b = neg(q);
  const Tensor more = square(a);  // its gradient reaches a after add() has passed dy to a and b
  const Tensor y = add(add(a, b), more);
  const Tensor dy = Tensor::from(Values{1, 10}, {2});
  backward(y, dy);
  EXPECT_EQ(grad(p), (Values{1, 30}));  // -(1 + 2a) dy
  EXPECT_EQ(grad(q), (Values{-1, -10}));
  EXPECT_EQ(dy.to_vector<float>(), (Values{1, 10}));
}

TEST_F(Autograd, RepeatedViewAsGradientCanBeAddedTo) {
  const Tensor p = leaf({1, 2});
  const Tensor a = neg(p);
  const Tensor y = add(square(a), expand(sum(a, {}, true), {2}));
  backward(sum(y));
  EXPECT_EQ(grad(p), (Values{0, 2}));  // -(2a + 2)
}

TEST_F(Autograd, ParameterIsReadWhereItLiesWhenTheRuleRuns) {
  const Tensor x = random_leaf({2, 3}, 1);
  const Tensor w = Tensor::from(Values{1, 2, 3}, {1, 3}).set_requires_grad(true);
  const Tensor y = linear(x, w);
  w.storage()->release();
  auto gathered = std::make_shared<Values>(Values{4, 5, 6});
  w.storage()->rebind(gathered->data(), gathered);
  backward(sum(y));
  EXPECT_EQ(grad(x), (Values{4, 5, 6, 4, 5, 6}));

  const Tensor again = linear(x, w);
  w.storage()->release();
  EXPECT_ERROR(backward(sum(again)), Exit::internal,
               "[tensor] storage of f32[1, 3] is released; gather it first");
}

TEST_F(Autograd, NoGradRecordsNothing) {
  const Tensor w = leaf({1});
  {
    NoGrad guard;
    EXPECT_TRUE(NoGrad::active());
    EXPECT_FALSE(neg(w).requires_grad());
    EXPECT_FALSE(needs_grad({w}));
    { NoGrad inner; }
    EXPECT_TRUE(NoGrad::active());
  }
  EXPECT_TRUE(neg(w).requires_grad());
  EXPECT_FALSE(neg(w.detach()).requires_grad());
}

TEST_F(Autograd, Misuse) {
  const Tensor w = leaf({1, 2});
  const Tensor y = sum(square(w));
  backward(y);
  EXPECT_ERROR(backward(y), Exit::internal,
               "[backward] the graph of sum was already consumed; run forward again");
  const Tensor h = square(w);
  backward(sum(h));
  EXPECT_ERROR(backward(sum(neg(h))), Exit::internal,
               "[backward] the graph of square was already consumed; run forward again");
  EXPECT_ERROR(backward(square(w)), Exit::internal,
               "[backward] root f32[2]; a scalar, or a gradient for it, is right");
  EXPECT_ERROR(backward(Tensor::zeros({1})), Exit::internal,
               "[backward] root f32[1] depends on no leaf that requires a gradient");
  EXPECT_ERROR(backward(square(w), Tensor::zeros({3})), Exit::internal,
               "[backward] gradient f32[3] for root f32[2]");
  Tensor inner = square(w);
  EXPECT_ERROR(inner.set_requires_grad(false), Exit::internal,
               "[tensor] f32[2] is the output of square, not a leaf");
  EXPECT_ERROR(inner.grad(), Exit::internal, "[tensor] f32[2] is not a leaf of the graph");
  const Tensor wrong = record("wrong", inner.detach(), {w}, [](const Tensor&, Grads& grads) {
    grads[0].add(Tensor::zeros({3}));
  });
  EXPECT_ERROR(backward(sum(wrong)), Exit::internal,
               "[backward] gradient f32[3] for leaf of shape [2]");
}

// ---- recomputation

struct Block {
  Tensor w1, b1, w2;
  DropoutKey key;

  Tensor operator()(const Tensor& x) const {
    return add(x, dropout(linear(linear_gelu(x, w1, b1, GeluKind::tanh), w2), 0.5f, key));
  }
  std::vector<Tensor> parameters() const { return {w1, b1, w2}; }
};

class Recompute : public Autograd {
 protected:
  Block block(uint64_t seed, DType dtype) {
    Block b{random_leaf({8, 6}, seed, dtype),
            random_leaf({8}, seed + 1, dtype),
            random_leaf({6, 8}, seed + 2, dtype),
            {}};
    b.key = {.stream = seed, .scalars = &scalars_};
    return b;
  }
  StepScalars scalars_{.step = 1};
};

TEST_F(Recompute, GivesTheSameBits) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    std::vector<Values> results[2];
    for (bool again : {false, true}) {
      const Block a = block(10, dtype), b = block(20, dtype);
      const Tensor x = random_leaf({4, 6}, 5, dtype);
      const auto apply = [&](const Block& block, const Tensor& h) {
        return again ? recompute(h, block.parameters(), block) : block(h);
      };
      const Tensor y = cast(apply(b, apply(a, neg(x))), DType::f32);
      results[again].push_back(y.to_vector<float>());
      backward(sum(square(y)));
      for (const Tensor& t : {x, a.w1, a.b1, a.w2, b.w1, b.b1, b.w2})
        results[again].push_back(grad(t));
    }
    EXPECT_EQ(results[0], results[1]);
  }
}

TEST_F(Recompute, LeavesAreReadyAsSoonAsInsideTheRegion) {
  const Block a = block(10, DType::f32), b = block(20, DType::f32);
  for (const auto& [t, name] : {std::pair{a.w1, "a.w1"},
                                {a.b1, "a.b1"},
                                {a.w2, "a.w2"},
                                {b.w1, "b.w1"},
                                {b.b1, "b.b1"},
                                {b.w2, "b.w2"}})
    watch(t, name);
  const auto region = [](const Block& block, const Tensor& h) {
    return recompute(h, block.parameters(), block);
  };
  const Tensor middle =
      on_backward(region(a, random_leaf({4, 6}, 5)), [&] { events_.push_back("between"); });
  backward(sum(region(b, middle)));
  EXPECT_EQ(events_,
            (std::vector<std::string>{"b.w2", "b.w1", "b.b1", "between", "a.w2", "a.w1", "a.b1"}));
}

TEST_F(Recompute, LeafInsideAndOutsideIsReadyOnceAfterTheLast) {
  const Tensor w = leaf({2}), x = leaf({3});
  watch(w, "w");
  watch(x, "x");
  const auto times_w = [&](const Tensor& h) { return mul(h, w); };
  const std::vector<Tensor> parameters{w};
  // Two regions, one nested in another, and one use outside: y = x w^4.
  const auto nested = [&](const Tensor& h) { return recompute(mul(h, w), parameters, times_w); };
  const Tensor y = mul(recompute(recompute(x, parameters, nested), parameters, times_w), w);
  EXPECT_EQ(y.item<float>(), 48);
  backward(y);
  EXPECT_EQ(grad(w), Values{96});
  EXPECT_EQ(grad(x), Values{16});
  EXPECT_EQ(events_.size(), 2u);
}

TEST_F(Recompute, ParameterThatTheRegionDoesNotUseIsStillReady) {
  const Tensor w = leaf({2}), idle = leaf({1}), x = leaf({3});
  watch(idle, "idle");
  const std::vector<Tensor> parameters{w, idle};
  backward(recompute(x, parameters, [&](const Tensor& h) { return mul(h, w); }));
  EXPECT_EQ(events_, std::vector<std::string>{"idle"});
  EXPECT_EQ(grad(w), Values{3});
}

TEST_F(Recompute, KeepsNoActivations) {
  const auto activations = [] {
    return Allocator::current().stats().current[static_cast<int>(Category::activations)];
  };
  const Tensor x = random_leaf({256}, 1);
  const int64_t before = activations();
  const auto f = [](const Tensor& h) { return square(square(square(square(h)))); };
  Tensor y = recompute(x, {}, f);
  EXPECT_EQ(activations() - before, 1024);
  y = Tensor();
  y = f(x);
  EXPECT_EQ(activations() - before, 4 * 1024);
}

TEST_F(Autograd, OnBackwardRunsWhenTheGradientIsComplete) {
  const Tensor x = leaf({3});
  const Tensor hooked = on_backward(neg(x), [&] { events_.push_back("hook"); });
  watch(x, "x");
  backward(add(square(hooked), hooked));
  EXPECT_EQ(events_, (std::vector<std::string>{"hook", "x"}));
  EXPECT_EQ(grad(x), Values{5});  // -(2 h + 1) at h = -3
}

TEST_F(Autograd, SteadyStateTakesNothingFromTheSystem) {
  Allocator allocator(host_memory());
  AllocatorScope scope(allocator);
  const Tensor w1 = random_leaf({32, 16}, 1), b1 = random_leaf({32}, 2),
               w2 = random_leaf({16, 32}, 3);
  const Tensor x = random_leaf({8, 16}, 4).detach();
  const auto step = [&] {
    backward(sum(square(linear(linear_gelu(x, w1, b1, GeluKind::erf), w2))));
    for (const Tensor& t : {w1, b1, w2}) t.leaf().reset_grad();
  };
  step();
  step();  // from here on gradients exist from the start
  const MemoryStats first = allocator.stats();
  for (int i = 0; i < 5; ++i) step();
  const MemoryStats last = allocator.stats();
  EXPECT_EQ(last.system_allocations, first.system_allocations);
  EXPECT_EQ(last.total_peak, first.total_peak);
  EXPECT_EQ(last.total(), first.total());
}

}  // namespace
}  // namespace lockstep
