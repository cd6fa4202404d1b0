// Checks an op against a naive double-precision formula: its result, and its gradient against
// central differences of that formula. Where tolerances come from: every element is compared within
// a number of roundings (16 of fp32; where bf16 is stored, also 4 of bf16) of the sum of its terms'
// magnitudes, which the differences give as well. Read next: op_rows.h.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace lockstep::op_suite {

using Index = std::vector<int64_t>;

// A row-major array of doubles.
struct Array {
  Shape shape;
  std::vector<double> values;

  // The element at i; missing leading dimensions and those of size 1 repeat.
  double operator()(const Index& i) const;
};

// The array of the given shape with f(i) at every index i.
Array build(const Shape& shape, const std::function<double(const Index&)>& f);

struct Case {
  std::string name;
  std::vector<Shape> inputs;
  std::function<Tensor(const std::vector<Tensor>&)> op;
  std::function<Array(const std::vector<Array>&)> naive;
  double low = -2, high = 2;  // inputs are drawn from here, but never within 0.05 of zero
  bool any_strides = true;    // whether the op takes inputs that are not contiguous
};

inline std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.name;
}

// Runs the row contiguous and strided, in fp32 and bf16, with leaves and with inner nodes as
// inputs, each with the gradient written and then accumulated.
void run(const Case& c);

// Numbers in [low, high], a function of (seed, position); none within 0.05 of zero.
std::vector<double> random_values(int64_t n, uint64_t seed, double low, double high);
// A tensor of these values; if strided, a view whose dimensions lie in reverse order, with gaps.
Tensor make_tensor(const std::vector<double>& values, const Shape& shape, DType dtype,
                   bool strided = false);
// The elements of t in row-major order.
std::vector<double> values_of(const Tensor& t);

}  // namespace lockstep::op_suite
