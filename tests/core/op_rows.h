// The table of ops: a suite of one row per op, with its name, input shapes, the op and a naive
// formula in double. op_suite.h says what is checked of a row, and how closely. Read next:
// ops_test.cpp.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/core/op_suite.h"

namespace lockstep::op_suite {

using Tensors = std::vector<Tensor>;
using Arrays = std::vector<Array>;

// Its one test is in ops_test.cpp.
class Op : public testing::TestWithParam<Case> {};

inline std::string name_of_row(const testing::TestParamInfo<Case>& info) {
  return info.param.name;
}

// The rows of family##_rows().
#define ROWS(family) \
  INSTANTIATE_TEST_SUITE_P(family, Op, testing::ValuesIn(family##_rows()), name_of_row)

inline double naive_sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}
inline double naive_gelu_tanh(double x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
inline double naive_gelu_erf(double x) {
  return x / 2 * std::erfc(-x / M_SQRT2);
}

}  // namespace lockstep::op_suite
