// Ops that move or rename elements. All but cat and contiguous give views: no copy, and a write to
// one shows in the other. fp32 or bf16; views of any type. Read next: shape.cpp.
#pragma once

#include <span>
#include <vector>

#include "core/tensor.h"

namespace lockstep {

// The same elements in row-major order under another shape; one size may be -1 (the rest). A view
// if x is contiguous, else of a copy.
Tensor reshape(const Tensor& x, Shape shape);
Tensor transpose(const Tensor& x, int dim_a, int dim_b);
// Dimension i of the result is dimension order[i] of x.
Tensor permute(const Tensor& x, const std::vector<int>& order);
// Elements begin..end-1 of one dimension.
Tensor slice(const Tensor& x, int dim, int64_t begin, int64_t end);
// Repeats size-1 and missing leading dimensions (stride 0).
Tensor expand(const Tensor& x, const Shape& shape);
// Puts tensors one after another along `dim`; their other sizes and types are equal.
Tensor cat(std::span<const Tensor> tensors, int dim);
Tensor cat(std::initializer_list<Tensor> tensors, int dim);
// x itself if its elements lie in row-major order already.
Tensor contiguous(const Tensor& x);

}  // namespace lockstep
