// Matrix products: oneDNN's, and our own where bf16 is multiplied without a matrix unit. What is
// done with a row of the latter (scaling, bias, GELU, rounding) is done while its tile is in cache.
// Read next: attention.cpp, which has products of its own.
#include "core/cpu/cpu_backend.h"
#include "core/cpu/gemm_onednn.h"
#include "core/cpu/product.h"
#include "core/cpu/row_sums.h"
#include "core/matrix.h"

namespace lockstep {

namespace {

Operand operand(const Tensor& t, const Matrix& m, int64_t batch) {
  return {t.data<bf16>() + batch * m.batch_stride, m.row_stride, m.column_stride};
}

void check_types(const Tensor& a, const Tensor& b, const Tensor& out) {
  for (const Tensor* t : {&a, &b, &out})
    check(t->dtype() == DType::f32 || t->dtype() == DType::bf16,
          "[gemm] {} operand; f32 and bf16 are right", name_of(t->dtype()));
  check(a.dtype() == b.dtype(), "[gemm] a {}, b {}; the types must be equal, cast one",
        to_string(a), to_string(b));
}

void scale(float factor, int64_t n, float* x) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

// Adds elements [column, column + n) of the bias to x.
void add_bias(const Source& bias, int64_t column, int64_t n, float* x) {
  alignas(64) float buffer[tile_columns];
  const float* b = bias.read(column, n, buffer);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] += b[i];
}

// What is stored is what goes on being computed with, as if it had been read back.
void round_to_bf16(int64_t n, float* x) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] = to_float(to_bf16(x[i]));
}

// The product of two matrices whose results, each [m, width] without gaps, are `touched`.
template <class Run, class... Touched>
void multiply_plain(const Tensor& a, const Tensor& b, Run&& run, const Touched&... touched) {
  const Matrix from(a), by(b);
  const int64_t width = by.columns;
  const Finish finish{run, [&](Ahead& ahead, int64_t row, int64_t rows, int64_t column, int64_t n) {
                        (ahead.add(touched, row * width + column, width, rows, n), ...);
                      }};
  multiply({operand(a, from, 0), operand(b, by, 0), from.rows, width, from.columns, finish});
}

// For fp32 oneDNN was up to a tenth faster than our product made for it. For bf16 it is 0.6 times
// as fast, unless the processor has a matrix unit or rows are so few that copying b costs more than
// multiplying.
bool by_onednn(const Tensor& a) {
  static const Bf16Products bf16 = onednn_bf16();
  constexpr int64_t few_rows = 64;
  return a.dtype() == DType::f32 || bf16 == Bf16Products::fast ||
         (bf16 == Bf16Products::slow && a.dim(-2) < few_rows);
}

// oneDNN keeps only the last result; an empty product is not multiplied at all.
bool in_two_passes(const Tensor& a, const Tensor& b) {
  return by_onednn(a) || a.numel() == 0 || b.numel() == 0;
}

}  // namespace

void CpuBackend::gemm(const Tensor& a, const Tensor& b, Tensor& out, const GemmOptions& options) {
  if (out.numel() == 0) return;
  check_types(a, b, out);
  if (a.dim(-1) == 0) {  // an empty product is zero
    if (options.bias) return copy(*options.bias, out, options.accumulate);
    if (!options.accumulate) fill(out, 0.0f);
    return;
  }
  const Matrix to = result_matrix(out);
  if (by_onednn(a)) return onednn_gemm(a, b, out, options);
  const Sink sink(out, options.accumulate);
  const float alpha = options.alpha ? options.alpha->item<float>() : 1.0f;
  const Source bias(options.bias ? *options.bias : out);
  const Matrix from(a), by(b);
  for (int64_t z = 0; z < to.batch; ++z) {
    const auto at = [&](int64_t row, int64_t column) {
      return z * to.batch_stride + row * to.row_stride + column;
    };
    const Finish finish{[&](int64_t row, int64_t column, int64_t n, float* x) {
                          if (options.alpha) scale(alpha, n, x);
                          if (options.bias) add_bias(bias, column, n, x);
                          sink.write(x, at(row, column), n);
                        },
                        [&](Ahead& ahead, int64_t row, int64_t rows, int64_t column, int64_t n) {
                          ahead.add(sink, at(row, column), to.row_stride, rows, n);
                        }};
    multiply({operand(a, from, z), operand(b, by, z), to.rows, to.columns, from.columns, finish});
  }
}

void CpuBackend::gemm_gelu(const Tensor& a, const Tensor& b, const Tensor* bias, const Unary& gelu,
                           Tensor& pre, Tensor& y) {
  if (in_two_passes(a, b)) {
    gemm(a, b, pre, {.bias = bias});
    return unary(gelu, pre, y);
  }
  const int64_t width = pre.dim(1);
  const Sink pre_sink(pre), y_sink(y);
  const Source bias_source(bias ? *bias : pre);
  std::visit(
      [&](const auto& fn) {
        const auto run = [&](int64_t row, int64_t column, int64_t n, float* x) {
          if (bias) add_bias(bias_source, column, n, x);
          round_to_bf16(n, x);
          pre_sink.write(x, row * width + column, n);
          const auto f = fn;
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) x[i] = f(x[i]);
          y_sink.write(x, row * width + column, n);
        };
        multiply_plain(a, b, run, pre_sink, y_sink);
      },
      gelu);
}

void CpuBackend::gemm_gelu_grad(const Tensor& a, const Tensor& b, const Unary& gelu,
                                const Tensor& pre, Tensor& dpre, Tensor* db, bool accumulate_db) {
  if (in_two_passes(a, b)) {
    gemm(a, b, dpre, {});
    return gelu_bias_grad(gelu, pre, dpre, dpre, db, accumulate_db);
  }
  const int64_t width = pre.dim(1);
  RowSums sums(pre.dim(0), width);
  const Source pre_source(pre);
  const Sink sink(dpre);
  std::visit(
      [&](const auto& fn) {
        const auto run = [&](int64_t row, int64_t column, int64_t n, float* x) {
          alignas(64) float buffer[tile_columns];
          round_to_bf16(n, x);
          const float* p = pre_source.read(row * width + column, n, buffer);
          float* sum = sums.partial(row) + column;
          if (row % rows_per_piece == 0) std::fill_n(sum, n, 0.0f);
          const auto f = fn;
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) {
            x[i] *= f.grad(p[i], f(p[i]));
            sum[i] += x[i];
          }
          sink.write(x, row * width + column, n);
        };
        multiply_plain(a, b, run, pre_source, sink);
      },
      gelu);
  if (db) sums.write(0, *db, accumulate_db);
}

}  // namespace lockstep
