// Softmax over the last dimension. Read next: swiglu.cpp.
#pragma once

#include "core/tensor.h"

namespace lockstep {

// exp(x) / sum(exp(x)) over the last dimension, computed from x - max(x).
Tensor softmax(const Tensor& x);

}  // namespace lockstep
