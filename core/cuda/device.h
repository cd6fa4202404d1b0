// What every kernel stands on: groups of 8 elements read as fp32 and written back as fp32 or bf16,
// and sums over warps and blocks. Every sum is a fixed tree, so results do not depend on the order
// in which threads run. Read next: elementwise.cu.
#pragma once

#include "core/cuda/launch.h"
#include "core/cuda/views.h"

namespace lockstep::cuda {

constexpr unsigned all_lanes = 0xffffffffu;

__device__ inline float load(const In& in, int64_t at) {
  return in.narrow ? to_float(static_cast<const bf16*>(in.data)[at])
                   : static_cast<const float*>(in.data)[at];
}

// x = elements [at, at + n) for n <= 8, then zeros; `at` is a multiple of 8 if `in` is aligned.
__device__ inline void load(const In& in, int64_t at, int n, float (&x)[group]) {
  if (in.aligned && n == group) {
    if (in.narrow) {
      const uint4 words = static_cast<const uint4*>(in.data)[at / 8];
      const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[2 * i] = std::bit_cast<float>(word[i] << 16);
        x[2 * i + 1] = std::bit_cast<float>(word[i] & 0xffff0000u);
      }
    } else {
      const float4 a = static_cast<const float4*>(in.data)[at / 4];
      const float4 b = static_cast<const float4*>(in.data)[at / 4 + 1];
      x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
      x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
    }
    return;
  }
  if (in.narrow) {
    const bf16* values = static_cast<const bf16*>(in.data) + at;
#pragma unroll
    for (int i = 0; i < group; ++i) x[i] = i < n ? to_float(values[i]) : 0.0f;
  } else {
    const float* values = static_cast<const float*>(in.data) + at;
#pragma unroll
    for (int i = 0; i < group; ++i) x[i] = i < n ? values[i] : 0.0f;
  }
}

__device__ inline void store(const Out& out, int64_t at, float x) {
  if (out.accumulate) x += load({out.data, out.narrow, false}, at);
  if (out.narrow)
    static_cast<bf16*>(out.data)[at] = to_bf16(x);
  else
    static_cast<float*>(out.data)[at] = x;
}

// Elements [at, at + n) for n <= 8, from x; `at` as above.
__device__ inline void store(const Out& out, int64_t at, int n, const float (&x)[group]) {
  if (out.aligned && n == group) {
    float y[group];
    if (out.accumulate) {
      load({out.data, out.narrow, true}, at, n, y);
#pragma unroll
      for (int i = 0; i < group; ++i) y[i] += x[i];
    } else {
#pragma unroll
      for (int i = 0; i < group; ++i) y[i] = x[i];
    }
    if (out.narrow) {
      uint32_t word[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        word[i] = to_bf16(y[2 * i]).bits | static_cast<uint32_t>(to_bf16(y[2 * i + 1]).bits) << 16;
      static_cast<uint4*>(out.data)[at / 8] = make_uint4(word[0], word[1], word[2], word[3]);
    } else {
      static_cast<float4*>(out.data)[at / 4] = make_float4(y[0], y[1], y[2], y[3]);
      static_cast<float4*>(out.data)[at / 4 + 1] = make_float4(y[4], y[5], y[6], y[7]);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < group; ++i)
    if (i < n) store(out, at + i, x[i]);
}

// How many of the 8 elements from `at` on are in a row of `length`; not positive past its end.
__device__ inline int in_group(int64_t at, int64_t length) {
  return static_cast<int>(length - at < group ? length - at : group);
}

// Over a warp; every lane gets the result.
template <class T>
__device__ T warp_sum(T v) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) v += __shfl_xor_sync(all_lanes, v, lane);
  return v;
}
__device__ inline float warp_max(float v) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) v = fmaxf(v, __shfl_xor_sync(all_lanes, v, lane));
  return v;
}

// Over a block of whole warps, all of which must call; every thread gets the result.
template <class T>
__device__ T block_sum(T v) {
  SHARED_ARRAY(T, part, [32]);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  v = warp_sum(v);
  __syncthreads();  // `part` may still be read from the call before
  if (lane == 0) part[warp] = v;
  __syncthreads();
  return warp_sum(lane < warps ? part[lane] : T(0));
}
__device__ inline float block_max(float v) {
  SHARED_ARRAY(float, part, [32]);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  v = warp_max(v);
  __syncthreads();
  if (lane == 0) part[warp] = v;
  __syncthreads();
  return warp_max(lane < warps ? part[lane] : -INFINITY);
}

// Kernels with one block per row: a thread for each group of the row, 32 to 512 of them.
constexpr int max_row_threads = 512;
inline int row_threads(int64_t columns) {
  const int64_t threads = (columns + group - 1) / group;
  return static_cast<int>(threads < 32                ? 32
                          : threads > max_row_threads ? max_row_threads
                                                      : (threads + 31) / 32 * 32);
}

}  // namespace lockstep::cuda
