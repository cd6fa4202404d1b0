// Matrix products by oneDNN. Read next: gemm.cpp.
#pragma once

#include "core/backend.h"

namespace lockstep {

// Whether this processor has a unit that multiplies matrices of bf16 (AMX).
bool onednn_has_matrix_unit();

// As Backend::gemm, for nothing empty. The bits may depend on the number of threads.
void onednn_gemm(const Tensor& a, const Tensor& b, Tensor& out, const GemmOptions& options);

}  // namespace lockstep
