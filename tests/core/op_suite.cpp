// Every way to give an op its inputs, and the comparison. Read next: op_rows.h.
#include "tests/core/op_suite.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/autograd.h"
#include "core/ops/elementwise.h"
#include "core/parallel.h"
#include "core/philox.h"

namespace lockstep::op_suite {

double Array::operator()(const Index& i) const {
  int64_t at = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    const int64_t k = i[i.size() - shape.size() + d];
    at = at * shape[d] + (shape[d] == 1 ? 0 : k);
  }
  return values[at];
}

Array build(const Shape& shape, const std::function<double(const Index&)>& f) {
  Array a{shape, {}};
  Index i(shape.size(), 0);
  for (int64_t n = numel(shape); n > 0; --n) {
    a.values.push_back(f(i));
    for (size_t d = shape.size(); d-- > 0;) {
      if (++i[d] < shape[d]) break;
      i[d] = 0;
    }
  }
  return a;
}

std::vector<double> random_values(int64_t n, uint64_t seed, double low, double high) {
  std::vector<double> values;
  const Philox philox(seed);
  for (int64_t i = 0; i < n; ++i) {
    double v = low + (high - low) * to_open_unit(philox(i)[0]);
    if (std::fabs(v) < 0.05) v = std::copysign(0.05 + std::fabs(v), v);
    values.push_back(v);
  }
  return values;
}

namespace {

template <class T>
void store(const Tensor& t, const std::vector<double>& values) {
  const Array offsets = build(t.shape(), [&](const Index& i) {
    int64_t at = 0;
    for (size_t d = 0; d < i.size(); ++d) at += i[d] * t.strides()[d];
    return static_cast<double>(at);
  });
  for (size_t i = 0; i < values.size(); ++i)
    t.data<T>()[static_cast<int64_t>(offsets.values[i])] =
        from_float<T>(static_cast<float>(values[i]));
}

}  // namespace

Tensor make_tensor(const std::vector<double>& values, const Shape& shape, DType dtype,
                   bool strided) {
  Tensor t = Tensor::empty(shape, dtype);
  if (strided) {
    Shape memory, strides(shape.size());
    int64_t step = shape.size() == 1 ? 2 : 1;
    for (size_t d = 0; d < shape.size(); ++d) {
      strides[d] = step;
      step *= shape[d] + 1;
    }
    t = Tensor::zeros({step + 3}, dtype).view(shape, strides, 3);
  }
  dtype == DType::f32 ? store<float>(t, values) : store<bf16>(t, values);
  return t;
}

std::vector<double> values_of(const Tensor& t) {
  std::vector<double> values;
  if (t.dtype() == DType::f32)
    for (float x : t.to_vector<float>()) values.push_back(x);
  else
    for (bf16 x : t.to_vector<bf16>()) values.push_back(to_float(x));
  return values;
}

namespace {

// The naive formula at one point: its value and all its derivatives.
struct Reference {
  Array y;
  std::vector<Array> inputs;
  std::vector<std::vector<std::vector<double>>> slopes;  // [input][its element][element of y]

  Reference(const Case& c, std::vector<Array> at) : y(c.naive(at)), inputs(std::move(at)) {
    const double h = 1e-5;
    for (Array& input : inputs) {
      slopes.emplace_back();
      for (double& x : input.values) {
        const double middle = x;
        x = middle + h;
        std::vector<double> slope = c.naive(inputs).values;
        x = middle - h;
        const std::vector<double> below = c.naive(inputs).values;
        x = middle;
        for (size_t j = 0; j < slope.size(); ++j) slope[j] = (slope[j] - below[j]) / (2 * h);
        slopes.back().push_back(std::move(slope));
      }
    }
  }

  // Magnitude of what element j of y was computed from.
  double magnitude(size_t j) const {
    double sum = std::fabs(y.values[j]);
    for (size_t k = 0; k < inputs.size(); ++k)
      for (size_t i = 0; i < slopes[k].size(); ++i)
        sum += std::fabs(inputs[k].values[i] * slopes[k][i][j]);
    return sum;
  }

  // The gradient of input k for dy, and the largest sum of its terms' magnitudes.
  std::vector<double> gradient(size_t k, const std::vector<double>& dy, double& magnitude) const {
    std::vector<double> gradient;
    magnitude = 0;
    for (const auto& slope : slopes[k]) {
      double sum = 0, terms = 0;
      for (size_t j = 0; j < dy.size(); ++j) {
        sum += dy[j] * slope[j];
        terms += std::fabs(dy[j] * slope[j]);
      }
      gradient.push_back(sum);
      magnitude = std::max(magnitude, terms);
    }
    return gradient;
  }
};

struct Variant {
  DType dtype;
  bool strided;
  bool inner;  // inputs are outputs of other nodes, so gradients have the inputs' type
};

class Run {
 public:
  Run(const Case& c, const Reference& reference, Variant variant)
      : case_(c), reference_(reference), variant_(variant) {
    for (size_t k = 0; k < c.inputs.size(); ++k)
      leaves_.push_back(
          make_tensor(reference.inputs[k].values, c.inputs[k], variant.dtype, variant.strided)
              .set_requires_grad(true));
  }

  void operator()() {
    std::vector<Tensor> inputs;
    for (const Tensor& leaf : leaves_)
      inputs.push_back(variant_.inner ? on_backward(leaf, [] {}) : leaf);
    Tensor y = case_.op(inputs);
    check_result(y);
    const Tensor dy =
        make_tensor(random_values(y.numel(), 99, -1, 1), y.shape(), y.dtype(), variant_.strided);
    if (variant_.inner) {
      backward(add(y, case_.op(inputs)), dy);
    } else {
      backward(y, dy);
      check_gradients(dy, 1);
      backward(case_.op(inputs), dy);
    }
    check_gradients(dy, 2);
  }

 private:
  double roundings(const Tensor& y) const {
    const bool narrow = variant_.dtype == DType::bf16 || y.dtype() == DType::bf16;
    return 16 * 0x1p-24 + (narrow ? 4 * 0x1p-8 : 0);
  }

  void check_result(const Tensor& y) {
    roundings_ = roundings(y);
    ASSERT_EQ(y.shape(), reference_.y.shape);
    const std::vector<double> values = values_of(y);
    for (size_t j = 0; j < values.size(); ++j)
      ASSERT_NEAR(values[j], reference_.y.values[j], roundings_ * reference_.magnitude(j))
          << "element " << j << " of y";
  }

  void check_gradients(const Tensor& dy, double times) {
    for (size_t k = 0; k < leaves_.size(); ++k) {
      ASSERT_EQ(leaves_[k].grad().shape(), case_.inputs[k]);
      const std::vector<double> got = values_of(leaves_[k].grad());
      double magnitude = 0;
      const std::vector<double> want = reference_.gradient(k, values_of(dy), magnitude);
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], times * want[i], times * roundings_ * magnitude)
            << "element " << i << " of the gradient of input " << k << ", " << times << " times";
    }
  }

  const Case& case_;
  const Reference& reference_;
  Variant variant_;
  std::vector<Tensor> leaves_;
  double roundings_ = 0;
};

}  // namespace

void run(const Case& c) {
  set_num_threads(1);  // no result depends on it, and these shapes are not worth waking a thread
  for (DType dtype : {DType::f32, DType::bf16}) {
    std::vector<Array> inputs;
    for (size_t k = 0; k < c.inputs.size(); ++k) {
      // Rounded to dtype first: the reference sees the numbers that the op sees.
      const std::vector<double> drawn = random_values(numel(c.inputs[k]), k + 1, c.low, c.high);
      inputs.push_back({c.inputs[k], values_of(make_tensor(drawn, c.inputs[k], dtype))});
    }
    const Reference reference(c, std::move(inputs));
    for (bool strided : {false, true})
      for (bool inner : {false, true}) {
        if (strided && !c.any_strides) continue;
        SCOPED_TRACE(fmt::format("{}, {}, {}", name_of(dtype), strided ? "strided" : "contiguous",
                                 inner ? "inner nodes" : "leaves"));
        Run(c, reference, {dtype, strided, inner})();
        if (testing::Test::HasFatalFailure()) return;
      }
  }
}

}  // namespace lockstep::op_suite
