// What kernels know of a tensor: a pointer, its type as a flag, and how to step through it. Plain
// structs that travel as kernel arguments, made from Tensors by cuda_backend.cpp; nothing here
// needs CUDA. Types are flags and not template parameters because a branch that all threads take
// alike costs nothing beside the memory access, and every kernel exists once. Read next: kernels.h.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace lockstep::cuda {

// Elements are read and written in groups of 8: 16 bytes of bf16, or twice 16 bytes of fp32.
constexpr int group = 8;

// Elements of an fp32 or bf16 tensor, addressed by their offset from its first element.
struct In {
  const void* data = nullptr;
  bool narrow = false;   // bf16
  bool aligned = false;  // every offset that is a multiple of 8 lies on a multiple of 16 bytes
};

// Where results go: rounded if the tensor is bf16, added to what is there if `accumulate`.
struct Out {
  void* data = nullptr;
  bool narrow = false, aligned = false, accumulate = false;
};

// N operands of one shape, any strides, as the fewest possible dimensions; dimension 0 runs along a
// row. Built by core/walk.h.
constexpr int max_dims = 8;
template <int N>
struct Dims {
  int count = 1;
  int64_t rows = 1;
  int64_t size[max_dims] = {1};
  int64_t stride[max_dims][N] = {};
};

// Packed attention heads, as in core/backend.h.
struct HeadLayout {
  int64_t n_head, n_kv_head, head_dim;
};

}  // namespace lockstep::cuda
