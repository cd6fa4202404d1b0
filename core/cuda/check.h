// For what the host compiler builds; kernels have check_call in launch.h.
#pragma once

#include <cuda_runtime.h>

#include "core/error.h"

namespace lockstep {

inline void check_cuda(cudaError_t result, const char* what) {
  if (result != cudaSuccess)
    fail(Exit::internal, "[cuda] {} failed: {}", what, cudaGetErrorString(result));
}

}  // namespace lockstep
