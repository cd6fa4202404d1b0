// The output projection and the loss of its logits as one op. Read next: cross_entropy.cpp.
#pragma once

#include "core/tensor.h"

namespace lockstep {

// The sum over rows of the cross-entropy of logits x w^T with the targets, fp32 [1].
// x [n, d] and w [v, d] of one type; targets [n] i32 in 0..v-1, or -1 for a row that does not count
// (an id outside is Exit::data). Holds at most one n x v tensor (of x's type, the gradient of the
// logits), and none where no gradient is needed.
Tensor linear_cross_entropy(const Tensor& x, const Tensor& w, const Tensor& targets);

// The loss of each row, fp32 [n]; for evaluation, so outside the graph.
Tensor linear_cross_entropy_rows(const Tensor& x, const Tensor& w, const Tensor& targets);

}  // namespace lockstep
