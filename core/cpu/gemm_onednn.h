// Matrix products by oneDNN. Read next: gemm.cpp.
#pragma once

#include "core/backend.h"

namespace lockstep {

// What oneDNN makes of bf16 on this processor: fast with a unit that multiplies matrices (AMX),
// slow with AVX-512 alone, and nothing without that.
enum class Bf16Products { none, slow, fast };
Bf16Products onednn_bf16();

// As Backend::gemm, for nothing empty. The bits may depend on the number of threads.
void onednn_gemm(const Tensor& a, const Tensor& b, Tensor& out, const GemmOptions& options);

}  // namespace lockstep
