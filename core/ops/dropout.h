// Dropout (Srivastava et al. 2014). Read next: dropout.cpp.
#pragma once

#include "core/backend.h"
#include "core/tensor.h"

namespace lockstep {

// x [b, ..] with each element zeroed with probability p, 0 <= p < 1, and the others divided by
// 1 - p. The bits come from `key` alone; its scalars must outlive the graph.
Tensor dropout(const Tensor& x, float p, const DropoutKey& key);

}  // namespace lockstep
