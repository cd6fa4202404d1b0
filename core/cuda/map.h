// The elementwise kernel: one for all functors, types, strides and broadcasts. A thread takes
// groups of 8 elements where rows allow it (every operand's row is contiguous or repeats one
// element), else single elements. Contiguous tensors are one row, so no division is left.
// Bytes per element are the operands' own: the least possible. Read next: elementwise.cu,
// binary.cu.
#pragma once

#include "core/cuda/device.h"

namespace lockstep::cuda {

template <int N, class F>
struct Map {
  Dims<N + 1> dims;  // operand N is the output
  In in[N > 0 ? N : 1];
  Out out;
  F f;  // f(v) for v [N]
};

constexpr int map_threads = 256;

// Launch: grid-stride over groups of G = 8 or 1 elements, which never cross a row.
template <int G, int N, class F>
__global__ void __launch_bounds__(map_threads) map_kernel(Map<N, F> map) {
  const int64_t length = map.dims.size[0], per_row = (length + G - 1) / G;
  const int64_t groups = map.dims.rows * per_row, step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t g = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; g < groups; g += step) {
    // Divisions are of 32 bits: launch_map sees to it that g fits where there are several rows.
    uint32_t row =
        map.dims.count > 1 ? static_cast<uint32_t>(g) / static_cast<uint32_t>(per_row) : 0;
    const int64_t begin = (g - row * per_row) * G;
    int64_t at[N + 1];
#pragma unroll
    for (int k = 0; k <= N; ++k) at[k] = begin * map.dims.stride[0][k];
#pragma unroll 1  // unrolled, this loop would be most of the code
    for (int d = 1; d < map.dims.count; ++d) {
      const uint32_t size = static_cast<uint32_t>(map.dims.size[d]);
      const uint32_t above = row / size, index = row - above * size;
#pragma unroll
      for (int k = 0; k <= N; ++k) at[k] += index * map.dims.stride[d][k];
      row = above;
    }
    if constexpr (G == 1) {
      float v[N > 0 ? N : 1];
#pragma unroll
      for (int k = 0; k < N; ++k) v[k] = load(map.in[k], at[k]);
      store(map.out, at[N], map.f(v));
    } else {
      const int n = in_group(begin, length);
      float x[N > 0 ? N : 1][group], y[group];
#pragma unroll
      for (int k = 0; k < N; ++k) {
        if (map.dims.stride[0][k] == 0) {
          const float same = load(map.in[k], at[k]);
#pragma unroll
          for (int i = 0; i < group; ++i) x[k][i] = same;
        } else {
          load(map.in[k], at[k], n, x[k]);
        }
      }
#pragma unroll
      for (int i = 0; i < group; ++i) {
        float v[N > 0 ? N : 1];
#pragma unroll
        for (int k = 0; k < N; ++k) v[k] = x[k][i];
        y[i] = map.f(v);
      }
      store(map.out, at[N], n, y);
    }
  }
}

template <int N, class F>
void launch_map(Stream s, const Map<N, F>& map) {
  // The views say whether offsets that are multiples of 8 are aligned; here, whether all are.
  bool rows_of_groups = map.dims.count == 1 || map.dims.size[0] % group == 0;
  for (int k = 0; k <= N; ++k) {
    const int64_t along = map.dims.stride[0][k];
    rows_of_groups = rows_of_groups && (along == 1 || (along == 0 && k < N));
    for (int d = 1; d < map.dims.count; ++d)
      rows_of_groups = rows_of_groups && (along == 0 || map.dims.stride[d][k] % group == 0);
  }
  const int64_t length = map.dims.size[0], per_group = rows_of_groups ? group : 1;
  const int64_t groups = map.dims.rows * ((length + per_group - 1) / per_group);
  if (map.dims.count > 1 && groups > int64_t{UINT32_MAX})
    call_failed("elementwise kernel", "more than 2^32 groups of elements that are not contiguous");
  launch(rows_of_groups ? map_kernel<group, N, F> : map_kernel<1, N, F>,
         blocks_for(groups, map_threads), dim3(map_threads), 0, s, map);
}

}  // namespace lockstep::cuda
