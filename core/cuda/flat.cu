// Bytes and floats in a row, for what ranks exchange: moved, added, and summed over ranks as the
// balanced tree that core/cpu/tree_sum.h walks on the CPU, so with the same bits.
#include "core/cuda/device.h"
#include "core/cuda/kernels.h"

namespace lockstep::cuda {

namespace {

constexpr int threads = 256;

bool aligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

// Launch: grid-stride over groups of 8. Bytes per element: the least possible (12).
__global__ void __launch_bounds__(threads)
    add_kernel(const float* x, float* sum, bool vectors, int64_t n) {
  const int64_t step = int64_t{gridDim.x} * threads * group;
  for (int64_t i = (int64_t{blockIdx.x} * threads + threadIdx.x) * group; i < n; i += step) {
    const int count = in_group(i, n);
    float v[group];
    load({x, false, vectors}, i, count, v);
    store({sum, false, vectors, true}, i, count, v);
  }
}

struct Parts {
  const float* at[most_parts];
  int count;
};

// v = the sum of parts [First, First + 2^Level), as far as there are any: First is there.
template <int Level, int First>
__device__ void sum_subtree(const Parts& parts, bool vectors, int64_t i, int count,
                            float (&v)[group]) {
  if constexpr (Level == 0) {
    load({parts.at[First], false, vectors}, i, count, v);
  } else {
    constexpr int middle = First + (1 << (Level - 1));
    sum_subtree<Level - 1, First>(parts, vectors, i, count, v);
    if (middle >= parts.count) return;
    float right[group];
    sum_subtree<Level - 1, middle>(parts, vectors, i, count, right);
#pragma unroll
    for (int k = 0; k < group; ++k) v[k] += right[k];
  }
}

// Launch: grid-stride over groups of 8. Bytes per element: the least possible (4 for each part and
// for the sum). A group is read before it is written, so the sum may be one of the parts.
template <int Levels>
__global__ void __launch_bounds__(threads)
    tree_sum_kernel(Parts parts, float* out, bool vectors, int64_t n) {
  const int64_t step = int64_t{gridDim.x} * threads * group;
  for (int64_t i = (int64_t{blockIdx.x} * threads + threadIdx.x) * group; i < n; i += step) {
    const int count = in_group(i, n);
    float v[group];
    sum_subtree<Levels, 0>(parts, vectors, i, count, v);
    store({out, false, vectors, false}, i, count, v);
  }
}

template <int Levels>
void launch_tree_sum(Stream s, const Parts& parts, float* out, bool vectors, int64_t n) {
  if constexpr ((1 << Levels) < most_parts)
    if (parts.count > 1 << Levels) return launch_tree_sum<Levels + 1>(s, parts, out, vectors, n);
  launch(tree_sum_kernel<Levels>, blocks_for((n + group - 1) / group, threads), dim3(threads), 0, s,
         parts, out, vectors, n);
}

}  // namespace

void move(Stream s, const void* from, void* to, size_t bytes) {
  if (bytes > 0)
    check_call(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s), "cudaMemcpyAsync");
}

void zero(Stream s, void* at, size_t bytes) {
  if (bytes > 0) check_call(cudaMemsetAsync(at, 0, bytes, s), "cudaMemsetAsync");
}

void add(Stream s, const float* x, float* sum, int64_t n) {
  launch(add_kernel, blocks_for((n + group - 1) / group, threads), dim3(threads), 0, s, x, sum,
         aligned(x) && aligned(sum), n);
}

void tree_sum(Stream s, const float* const* parts, int count, float* out, int64_t n) {
  Parts all{{}, count};
  bool vectors = aligned(out);
  for (int r = 0; r < count; ++r) {
    all.at[r] = parts[r];
    vectors = vectors && aligned(parts[r]);
  }
  launch_tree_sum<0>(s, all, out, vectors, n);
}

}  // namespace lockstep::cuda
