// A tensor as gemm's operand, for what multiplies. Read next: cpu/gemm.cpp.
#pragma once

#include <algorithm>

#include "core/tensor.h"

namespace lockstep {

// [batch, rows, columns]; one of the last two strides is 1. Strides of dimensions of size 1 mean
// nothing in a Tensor; here they are set so that they fit a matrix stored by rows or by columns.
struct Matrix {
  DType type;
  int64_t batch, rows, columns, batch_stride, row_stride, column_stride;

  explicit Matrix(const Tensor& t) : type(t.dtype()) {
    const int d = t.ndim();
    check(d == 2 || d == 3, "[gemm] operand {}; a matrix or a batch of them is right",
          to_string(t));
    batch = d == 3 ? t.dim(0) : 1;
    rows = t.dim(-2), columns = t.dim(-1);
    row_stride = t.strides()[d - 2], column_stride = t.strides()[d - 1];
    if (columns == 1) column_stride = 1;
    if (rows == 1) row_stride = column_stride == 1 ? columns : 1;
    if (columns == 1) row_stride = std::max<int64_t>(row_stride, 1);
    batch_stride = batch == 1 ? rows * columns : t.strides()[0];
    check(row_stride == 1 || column_stride == 1, "[gemm] strides {} of {}; one has to be 1",
          to_string(t.strides()), to_string(t));
  }
};

// The same for a product's result, which is stored by rows.
inline Matrix result_matrix(const Tensor& out) {
  const Matrix m(out);
  check(m.column_stride == 1, "[gemm] result {} is stored by columns; rows are right",
        to_string(out));
  return m;
}

}  // namespace lockstep
