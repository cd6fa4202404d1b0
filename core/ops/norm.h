// Normalisation of rows (the last dimension). Read next: norm.cpp.
#pragma once

#include "core/tensor.h"

namespace lockstep {

// (x - mean) / sqrt(variance + eps) * w + b for x [.., c], w and b [c] (Ba, Kiros, Hinton 2016).
Tensor layer_norm(const Tensor& x, const Tensor& w, const Tensor& b, float eps = 1e-5f);
// x / sqrt(mean(x^2) + eps) * w for x [.., c], w [c] (Zhang, Sennrich 2019).
Tensor rms_norm(const Tensor& x, const Tensor& w, float eps = 1e-5f);

}  // namespace lockstep
