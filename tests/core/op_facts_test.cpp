// What single ops promise beyond their formula: no copies, no large temporaries, which random bits,
// how ties are shared. Formulas and gradients are checked by op_rows.h's tables.
#include <gtest/gtest.h>

#include <cmath>

#include "core/init.h"
#include "core/ops.h"
#include "core/parallel.h"
#include "tests/core/op_suite.h"

namespace lockstep {
namespace {

using op_suite::make_tensor;
using op_suite::random_values;
using op_suite::values_of;
using Values = std::vector<float>;

Tensor random_tensor(const Shape& shape, uint64_t seed, DType dtype = DType::f32) {
  return make_tensor(random_values(numel(shape), seed, -1, 1), shape, dtype);
}

// x; notes where its gradient lies.
Tensor spy(const Tensor& x, const void*& where) {
  return record("spy", x.detach(), {x}, [&where](const Tensor& dy, Grads& grads) {
    where = dy.raw();
    grads[0].add(dy);
  });
}

TEST(Elementwise, AddHandsItsGradientOnWithoutACopy) {
  const Tensor p = random_tensor({4}, 1).set_requires_grad(true);
  const void *at_a = nullptr, *at_b = nullptr, *at_c = nullptr, *at_sum = nullptr;
  const Tensor a = spy(p, at_a), b = spy(p, at_b), c = spy(p, at_c);
  backward(sum(square(spy(sub(add(a, b), c), at_sum))));
  EXPECT_EQ(at_a, at_sum);
  EXPECT_EQ(at_b, at_sum);
  EXPECT_NE(at_c, at_sum);  // negated
}

TEST(Reduce, TiesShareTheGradientOfMax) {
  const Tensor x = Tensor::from(Values{1, 3, 3, -1, 3, 2}, {2, 3}).set_requires_grad(true);
  backward(max(x, {1}), Tensor::from(Values{1, 5}, {2}));
  EXPECT_EQ(x.grad().to_vector<float>(), (Values{0, 0.5, 0.5, 0, 5, 0}));
}

TEST(Reduce, CastToItsOwnTypeIsTheSameTensor) {
  const Tensor x = random_tensor({4}, 1);
  EXPECT_EQ(cast(x, DType::f32).raw(), x.raw());
  EXPECT_EQ(cast(x, DType::bf16).dtype(), DType::bf16);
}

TEST(ShapeOps, ViewsCopyNothing) {
  const Tensor x = random_tensor({2, 3, 4}, 1);
  EXPECT_EQ(reshape(x, {-1, 4}).raw(), x.raw());
  EXPECT_EQ(permute(x, {2, 0, 1}).raw(), x.raw());
  EXPECT_EQ(expand(x, {5, 2, 3, 4}).raw(), x.raw());
  EXPECT_EQ(slice(x, 0, 1, 2).raw(), x.data<float>() + 12);
  EXPECT_EQ(contiguous(x).raw(), x.raw());
  EXPECT_NE(reshape(transpose(x, 0, 1), {24}).raw(), x.raw());
}

TEST(Linear, WeightGradientNeedsNoTemporary) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    Allocator allocator(host_memory());
    AllocatorScope scope(allocator);
    const Tensor w = random_tensor({2048, 1024}, 1, dtype).set_requires_grad(true);
    const Tensor x = random_tensor({4, 1024}, 2, dtype);
    Tensor buffer = Tensor::zeros({2048, 1024});
    w.leaf().bind_grad = [&] { return buffer; };
    for (int pass = 0; pass < 2; ++pass) {  // written, then added to
      const Tensor y = linear(x, w);
      const Tensor dy = random_tensor({4, 2048}, 3, dtype);
      allocator.reset_peak();
      const int64_t before = allocator.stats().total();
      backward(y, dy);
      // A kernel's scratch, which grows with the number of threads, but no second 8 MB.
      EXPECT_LT(allocator.stats().total_peak - before, (1 << 20) + num_threads() * (400 << 10));
    }
    EXPECT_EQ(w.grad().raw(), buffer.raw());
  }
}

// ---- dropout

class Dropout : public testing::Test {
 protected:
  // Which of the elements of [samples, width] ones stay.
  std::vector<double> kept(int64_t samples, int64_t first, uint64_t stream = 1,
                           DType dtype = DType::f32) {
    const Tensor ones = make_tensor(std::vector(samples * width_, 1.0), {samples, width_}, dtype);
    scalars_.first_sample = first;
    return values_of(dropout(ones, 0.25f, {.stream = stream, .scalars = &scalars_}));
  }
  static constexpr int64_t width_ = 1001;
  StepScalars scalars_{.step = 1};
};

TEST_F(Dropout, DependsOnGlobalSampleNotOnTheBatch) {
  const std::vector<double> all = kept(4, 10);
  for (int64_t s = 0; s < 4; ++s)
    EXPECT_EQ(kept(1, 10 + s),
              std::vector<double>(all.begin() + s * width_, all.begin() + (s + 1) * width_));
}

TEST_F(Dropout, DiffersByStepStreamAndSample) {
  const std::vector<double> now = kept(1, 0);
  EXPECT_EQ(now, kept(1, 0));
  EXPECT_NE(now, kept(1, 1));
  EXPECT_NE(now, kept(1, 0, 2));
  scalars_.step = 2;
  EXPECT_NE(now, kept(1, 0));
}

TEST_F(Dropout, KeepsTheRightShareAndScalesIt) {
  const std::vector<double> values = kept(50, 0);
  const double n = static_cast<double>(values.size());
  double share = 0;
  for (double v : values) {
    EXPECT_TRUE(v == 0 || v == static_cast<double>(1 / 0.75f)) << v;
    share += (v != 0) / n;
  }
  EXPECT_NEAR(share, 0.75, 5 * std::sqrt(0.75 * 0.25 / n));
}

TEST_F(Dropout, DrawsTheSameForEveryType) {
  const std::vector<double> wide = kept(2, 3), narrow = kept(2, 3, 1, DType::bf16);
  for (size_t i = 0; i < wide.size(); ++i) EXPECT_EQ(wide[i] != 0, narrow[i] != 0);
}

TEST_F(Dropout, OfNothingIsTheSameTensor) {
  const Tensor x = random_tensor({2, 3}, 1);
  EXPECT_EQ(dropout(x, 0.0f, {.scalars = &scalars_}).raw(), x.raw());
}

// ---- cross-entropy, with a vocabulary large enough that rows come in two chunks

class CrossEntropy : public testing::Test {
 protected:
  static constexpr int64_t n = 250, d = 4, v = 50000;
  static constexpr int64_t logits_bytes = n * v * 4;
  static constexpr int64_t chunk_bytes = 33 << 20, small = 2 << 20;

  CrossEntropy() : scope_(allocator_), x_(random_tensor({n, d}, 1)), w_(Tensor::empty({v, d})) {
    normal_(w_, 1, "w", 1.0);
    std::vector<int32_t> targets;
    for (int64_t i = 0; i < n; ++i) targets.push_back(i % 7 == 3 ? -1 : (i * 7919) % v);
    targets_ = Tensor::from(targets, {n});
    allocator_.reset_peak();
    before_ = allocator_.stats().total();
  }

  int64_t peak() const { return allocator_.stats().total_peak - before_; }

  // The loss of row r, and its gradient with respect to that row of x.
  double naive_row(int64_t r, std::vector<double>& dx) const {
    const int32_t target = targets_.data<int32_t>()[r];
    dx.assign(d, 0);
    if (target < 0) return 0;
    std::vector<double> p(v);
    double sum = 0;
    for (int64_t k = 0; k < v; ++k) sum += p[k] = std::exp(logit(r, k));
    for (int64_t k = 0; k < v; ++k)
      for (int64_t e = 0; e < d; ++e)
        dx[e] += (p[k] / sum - (k == target)) * w_.data<float>()[k * d + e];
    return std::log(sum) - logit(r, target);
  }
  double logit(int64_t r, int64_t k) const {
    double sum = 0;
    for (int64_t e = 0; e < d; ++e)
      sum += static_cast<double>(x_.data<float>()[r * d + e]) * w_.data<float>()[k * d + e];
    return sum;
  }

  Allocator allocator_{host_memory()};
  AllocatorScope scope_;
  Tensor x_, w_, targets_;
  int64_t before_;
};

TEST_F(CrossEntropy, HoldsTheGradientOfTheLogitsOnceAndTheLogitsNever) {
  x_.set_requires_grad(true);
  w_.set_requires_grad(true);
  backward(scale(linear_cross_entropy(x_, w_, targets_), 0.5f));
  EXPECT_LT(peak(), logits_bytes + chunk_bytes + small);
  static_assert(chunk_bytes + small < logits_bytes);

  std::vector<double> dx;
  for (int64_t r : {int64_t{0}, int64_t{3}, int64_t{166}, int64_t{167}, int64_t{168}, n - 1}) {
    naive_row(r, dx);
    // A sum of v terms p w with |w| mostly below 3: the roundings of v additions are a random walk.
    for (int64_t e = 0; e < d; ++e)
      EXPECT_NEAR(x_.grad().data<float>()[r * d + e], 0.5 * dx[e], std::sqrt(v) * 0x1p-24 * 3);
  }
}

TEST_F(CrossEntropy, HoldsOnlyAChunkWhereNoGradientIsNeeded) {
  const float loss = linear_cross_entropy(x_, w_, targets_).item<float>();
  EXPECT_LT(peak(), chunk_bytes + small);
  const Tensor rows = linear_cross_entropy_rows(x_, w_, targets_);
  EXPECT_LT(peak(), chunk_bytes + small);
  std::vector<double> dx;
  double total = 0;
  for (float row : rows.to_vector<float>()) total += row;
  EXPECT_NEAR(loss, total, 0x1p-22 * total);
  for (int64_t r : {int64_t{0}, int64_t{3}, int64_t{166}, int64_t{167}, n - 1}) {
    const double want = naive_row(r, dx);
    EXPECT_NEAR(rows.to_vector<float>()[r], want, 16 * 0x1p-24 * want);
  }
}

TEST_F(CrossEntropy, RowsAreOutsideTheGraph) {
  x_.set_requires_grad(true);
  EXPECT_FALSE(linear_cross_entropy_rows(x_, w_, targets_).requires_grad());
}

}  // namespace
}  // namespace lockstep
