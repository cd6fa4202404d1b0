// Matrix products and the linear layer. fp32 or bf16, all inputs of a call alike; products are
// summed in fp32. Read next: linear.cpp.
#pragma once

#include "core/ops/elementwise.h"
#include "core/tensor.h"

namespace lockstep {

// a [m, k] b [k, n] -> [m, n], or both with the same leading batch dimension. Transposed views are
// used in place.
Tensor matmul(const Tensor& a, const Tensor& b);

// x [.., k], w [n, k], b [n] or undefined -> x w^T + b, [.., n].
Tensor linear(const Tensor& x, const Tensor& w, const Tensor& b = {});

// gelu(linear(x, w, b)). Keeps the values before gelu; the gradients of gelu and of b are one pass.
Tensor linear_gelu(const Tensor& x, const Tensor& w, const Tensor& b, GeluKind kind);

// linear(linear_gelu(x, w1, b1), w2, b2), with the same bits on the CPU. As one op the gradient of
// gelu belongs to the product before it, and may be computed with it.
Tensor mlp_gelu(const Tensor& x, const Tensor& w1, const Tensor& b1, const Tensor& w2,
                const Tensor& b2, GeluKind kind);

}  // namespace lockstep
