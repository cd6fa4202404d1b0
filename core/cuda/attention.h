// What the attention kernels share: where a head's rows are, and the launch shapes. Only .cu files
// see it. Read next: attention.cu.
#pragma once

#include "core/cuda/device.h"
#include "core/cuda/kernels.h"

namespace lockstep::cuda {

struct Attention {
  In qkv, o, d_o;
  Out out, dqkv;
  float *lse, *delta;  // [b, n_head, t]
  int64_t t, d, packed, n_head, n_kv_head, repeat;
  float scale;

  // Offset of row 0 of a head's queries, keys, values in qkv; of its results in o.
  __device__ int64_t q(int64_t b, int64_t head) const { return b * t * packed + head * d; }
  __device__ int64_t k(int64_t b, int64_t kv) const { return q(b, n_head + kv); }
  __device__ int64_t v(int64_t b, int64_t kv) const { return q(b, n_head + n_kv_head + kv); }
  __device__ int64_t result(int64_t b, int64_t head) const { return (b * t * n_head + head) * d; }
  __device__ int64_t row(int64_t b, int64_t head) const { return (b * n_head + head) * t; }
};

inline dim3 tiles(int64_t t, int64_t tile, int64_t heads, int64_t b) {
  return dim3(static_cast<unsigned>((t + tile - 1) / tile), static_cast<unsigned>(heads),
              static_cast<unsigned>(b));
}

// attention_wmma.cu: the same on tensor cores, for bf16 qkv and d_o, and heads of at most
// max_wmma_head_dim. Backward expects delta.
void attention_wmma(Stream s, const Attention& a, int64_t b);
void attention_grad_wmma(Stream s, const Attention& a, int64_t b);

}  // namespace lockstep::cuda
