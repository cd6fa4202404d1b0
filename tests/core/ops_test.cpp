// Elementwise ops, reductions, casts and changes of shape. To test a new op, add a row to the table
// of its family, here or in model_ops_test.cpp. Read next: model_ops_test.cpp.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/ops.h"
#include "tests/core/op_rows.h"

namespace lockstep::op_suite {
namespace {

// ---- elementwise

Case unary_row(const char* name, Tensor (*op)(const Tensor&), double (*f)(double), double low = -2,
               double high = 2) {
  return {name,
          {{2, 19}},
          [=](const Tensors& x) { return op(x[0]); },
          [=](const Arrays& x) {
            return build({2, 19}, [&](const Index& i) { return f(x[0](i)); });
          },
          low,
          high};
}

Case binary_row(const std::string& name, Tensor (*op)(const Tensor&, const Tensor&),
                double (*f)(double, double), const Shape& a, const Shape& b, const Shape& y) {
  return {name,
          {a, b},
          [=](const Tensors& x) { return op(x[0], x[1]); },
          [=](const Arrays& x) {
            return build(y, [&](const Index& i) { return f(x[0](i), x[1](i)); });
          }};
}

std::vector<Case> elementwise_rows() {
  std::vector<Case> rows{
      unary_row("neg", neg, [](double x) { return -x; }),
      unary_row(
          "scale", [](const Tensor& x) { return scale(x, -1.75f); },
          [](double x) { return -1.75 * x; }),
      unary_row(
          "exp", exp, [](double x) { return std::exp(x); }, -10, 10),
      unary_row(
          "log", log, [](double x) { return std::log(x); }, 0.05, 20),
      unary_row(
          "sqrt", sqrt, [](double x) { return std::sqrt(x); }, 0.05, 20),
      unary_row("square", square, [](double x) { return x * x; }),
      unary_row("relu", relu, [](double x) { return x > 0 ? x : 0; }),
      unary_row("tanh", tanh, [](double x) { return std::tanh(x); }),
      unary_row("sigmoid", sigmoid, naive_sigmoid, -6, 6),
      unary_row(
          "silu", silu, [](double x) { return x * naive_sigmoid(x); }, -6, 6),
      unary_row(
          "gelu_tanh", [](const Tensor& x) { return gelu(x, GeluKind::tanh); }, naive_gelu_tanh),
      unary_row(
          "gelu_erf", [](const Tensor& x) { return gelu(x, GeluKind::erf); }, naive_gelu_erf),
  };

  struct Binary {
    const char* name;
    Tensor (*op)(const Tensor&, const Tensor&);
    double (*f)(double, double);
  };
  for (const Binary& b : {Binary{"add", add, [](double x, double y) { return x + y; }},
                          Binary{"sub", sub, [](double x, double y) { return x - y; }},
                          Binary{"mul", mul, [](double x, double y) { return x * y; }},
                          Binary{"div", div, [](double x, double y) { return x / y; }}}) {
    const std::string name = b.name;
    rows.push_back(binary_row(name, b.op, b.f, {3, 19}, {3, 19}, {3, 19}));
    rows.push_back(binary_row(name + "_row", b.op, b.f, {2, 3, 5}, {5}, {2, 3, 5}));
    rows.push_back(binary_row(name + "_both_repeat", b.op, b.f, {3, 1, 4}, {2, 1}, {3, 2, 4}));
    rows.push_back(binary_row(name + "_scalar", b.op, b.f, {}, {2, 3}, {2, 3}));
  }
  for (Case& row : rows)
    if (row.name.starts_with("div")) row.low = 0.5;
  return rows;
}

// ---- reductions, cast

// Elements of x at all positions that agree with i where i is not -1.
std::vector<double> matching(const Array& x, const Index& i) {
  std::vector<double> values;
  build(x.shape, [&](const Index& at) {
    for (size_t d = 0; d < at.size(); ++d)
      if (i[d] >= 0 && i[d] != at[d]) return 0.0;
    values.push_back(x(at));
    return 0.0;
  });
  return values;
}

double total(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}
double average(const std::vector<double>& values) {
  return total(values) / static_cast<double>(values.size());
}
double largest(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

std::vector<Case> reduce_rows() {
  struct Kind {
    const char* name;
    Tensor (*op)(const Tensor&, const std::vector<int>&, bool);
    double (*f)(const std::vector<double>&);
  };
  std::vector<Case> rows;
  for (const Kind& k :
       {Kind{"sum", sum, total}, Kind{"mean", mean, average}, Kind{"max", max, largest}}) {
    const std::string name = k.name;
    const Shape shape{3, 4, 5};
    const auto row = [&](const char* suffix, std::vector<int> dims, bool keep, Shape y,
                         std::function<Index(const Index&)> where) {
      rows.push_back({name + suffix,
                      {shape},
                      [=](const Tensors& x) { return k.op(x[0], dims, keep); },
                      [=](const Arrays& x) {
                        return build(y,
                                     [&](const Index& i) { return k.f(matching(x[0], where(i))); });
                      }});
    };
    row("_all", {}, false, {}, [](const Index&) { return Index{-1, -1, -1}; });
    row("_last", {-1}, false, {3, 4}, [](const Index& i) { return Index{i[0], i[1], -1}; });
    row("_outer", {0, 1}, false, {5}, [](const Index& i) { return Index{-1, -1, i[0]}; });
    row("_middle_kept", {1}, true, {3, 1, 5}, [](const Index& i) { return Index{i[0], -1, i[2]}; });
  }
  rows.push_back({"cast",
                  {{2, 9}},
                  [](const Tensors& x) {
                    return cast(x[0], x[0].dtype() == DType::f32 ? DType::bf16 : DType::f32);
                  },
                  [](const Arrays& x) { return x[0]; }});
  return rows;
}

// ---- shape

std::vector<Case> shape_rows() {
  return {
      {"reshape",
       {{2, 3, 4}},
       [](const Tensors& x) {
         return reshape(x[0], {6, -1});
       },
       [](const Arrays& x) {
         return build({6, 4}, [&](const Index& i) { return x[0]({i[0] / 3, i[0] % 3, i[1]}); });
       }},
      {"transpose",
       {{2, 3, 4}},
       [](const Tensors& x) { return transpose(x[0], 0, -1); },
       [](const Arrays& x) {
         return build({4, 3, 2}, [&](const Index& i) { return x[0]({i[2], i[1], i[0]}); });
       }},
      {"permute",
       {{2, 3, 4}},
       [](const Tensors& x) {
         return permute(x[0], {1, 2, 0});
       },
       [](const Arrays& x) {
         return build({3, 4, 2}, [&](const Index& i) { return x[0]({i[2], i[0], i[1]}); });
       }},
      {"slice",
       {{2, 5, 3}},
       [](const Tensors& x) { return slice(x[0], 1, 1, 4); },
       [](const Arrays& x) {
         return build({2, 3, 3}, [&](const Index& i) { return x[0]({i[0], i[1] + 1, i[2]}); });
       }},
      {"expand",
       {{3, 1}},
       [](const Tensors& x) {
         return expand(x[0], {2, 3, 4});
       },
       [](const Arrays& x) {
         return build({2, 3, 4}, [&](const Index& i) { return x[0](i); });
       }},
      {"cat",
       {{2, 3}, {2, 1}, {2, 2}},
       [](const Tensors& x) { return cat(x, -1); },
       [](const Arrays& x) {
         return build({2, 6}, [&](const Index& i) {
           if (i[1] < 3) return x[0](i);
           return i[1] < 4 ? x[1]({i[0], 0}) : x[2]({i[0], i[1] - 4});
         });
       }},
      {"contiguous",
       {{3, 4}},
       [](const Tensors& x) { return contiguous(transpose(x[0], 0, 1)); },
       [](const Arrays& x) {
         return build({4, 3}, [&](const Index& i) { return x[0]({i[1], i[0]}); });
       }},
  };
}

TEST_P(Op, MatchesNaiveFormulaAndItsDifferences) {
  run(GetParam());
}

ROWS(elementwise);
ROWS(reduce);
ROWS(shape);

}  // namespace
}  // namespace lockstep::op_suite
