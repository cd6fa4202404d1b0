// How kernels are launched and how they name shared memory: three helpers that nvcc and g++ both
// understand, so that tests/cuda_on_cpu compiles the same .cu files as C++ (there <cuda_runtime.h>
// is a twin in which CUDA threads are fibers). Hence no <<< >>> in this folder, no cooperative
// groups and no inline PTX. Read next: device.h.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace lockstep::cuda {

// Throws an Error that names the call; defined in cuda_backend.cpp, because error.h's formatting
// library cannot be compiled by nvcc.
[[noreturn]] void call_failed(const char* what, const char* reason);

inline void check_call(cudaError_t result, const char* what) {
  if (result != cudaSuccess) call_failed(what, cudaGetErrorString(result));
}

#ifdef __CUDACC__

#define SHARED_ARRAY(type, name, extents) __shared__ type name extents

// The block's dynamic shared memory, aligned as tensor cores ask.
template <class T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(32) unsigned char lockstep_dynamic_shared[];
  return reinterpret_cast<T*>(lockstep_dynamic_shared);
}

template <class... P, class... A>
void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
            A&&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;  // CUDA refuses empty grids
  constexpr size_t without_asking = 48 << 10;
  if (shared_bytes > without_asking)
    check_call(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shared_bytes)),
               "cudaFuncSetAttribute(shared memory)");
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  check_call(cudaLaunchKernelEx(&config, kernel, static_cast<P>(std::forward<A>(arguments))...),
             "kernel launch");
}

#else

using cuda_on_cpu::dynamic_shared;
using cuda_on_cpu::launch;

#endif

// Blocks of `threads` for n work items of a grid-stride loop: enough to fill any GPU several times
// over. Results never depend on it.
inline dim3 blocks_for(int64_t n, int threads) {
  constexpr int64_t most = 16384;
  const int64_t blocks = (n + threads - 1) / threads;
  return dim3(static_cast<unsigned>(blocks < most ? blocks : most));
}

}  // namespace lockstep::cuda
