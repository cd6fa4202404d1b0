// Softmax over rows, and the cross-entropy of logits with its gradient: one block per row. Maximum
// and sum are found in one pass, the sum rescaled where the maximum grows (Milakov and Gimelshein,
// 2018). Read next: embedding.cu.
#include "core/cuda/device.h"
#include "core/cuda/kernels.h"

namespace lockstep::cuda {

namespace {

struct MaxSum {
  float max, sum;  // sum of e^(x - max)
};

// Of the row at `origin`; every thread of the block gets it.
__device__ MaxSum max_sum(const In& x, int64_t origin, int64_t c) {
  float max = -INFINITY, sum = 0;
  for (int64_t i = threadIdx.x * group; i < c; i += blockDim.x * group) {
    const int n = in_group(i, c);
    float v[group], most = max;
    load(x, origin + i, n, v);
#pragma unroll
    for (int k = 0; k < group; ++k)
      if (k < n) most = fmaxf(most, v[k]);
    if (most > max) {  // not for elements that are all -infinity
      sum *= fast_exp(max - most);
      max = most;
    }
#pragma unroll
    for (int k = 0; k < group; ++k)
      if (k < n && v[k] != -INFINITY) sum += fast_exp(v[k] - max);
  }
  const float all = block_max(max);
  return {all, block_sum(max == all ? sum : sum * fast_exp(max - all))};
}

// Bytes per element: x is read twice (the second time from a cache where the row fits), y written
// once.
__global__ void __launch_bounds__(max_row_threads) softmax_kernel(In x, Out y, int64_t c) {
  const int64_t origin = blockIdx.x * c;
  const MaxSum row = max_sum(x, origin, c);
  const float factor = 1.0f / row.sum;
  for (int64_t i = threadIdx.x * group; i < c; i += blockDim.x * group) {
    const int n = in_group(i, c);
    float v[group];
    load(x, origin + i, n, v);
#pragma unroll
    for (int k = 0; k < group; ++k) v[k] = fast_exp(v[k] - row.max) * factor;
    store(y, origin + i, n, v);
  }
}

// dx = y (dy - sum(y dy)). Bytes per element: y and dy twice, the second time from a cache.
__global__ void __launch_bounds__(max_row_threads)
    softmax_grad_kernel(In y, In dy, Out dx, int64_t c) {
  const int64_t origin = blockIdx.x * c;
  float p[group], d[group], dot = 0;
  for (int64_t i = threadIdx.x * group; i < c; i += blockDim.x * group) {
    const int n = in_group(i, c);
    load(y, origin + i, n, p);
    load(dy, origin + i, n, d);
#pragma unroll
    for (int k = 0; k < group; ++k) dot += p[k] * d[k];
  }
  dot = block_sum(dot);
  for (int64_t i = threadIdx.x * group; i < c; i += blockDim.x * group) {
    const int n = in_group(i, c);
    load(y, origin + i, n, p);
    load(dy, origin + i, n, d);
#pragma unroll
    for (int k = 0; k < group; ++k) p[k] *= d[k] - dot;
    store(dx, origin + i, n, p);
  }
}

// Bytes per element: logits twice, dlogits once.
__global__ void __launch_bounds__(max_row_threads)
    cross_entropy_kernel(In logits, const int32_t* targets, float* loss, Out dlogits, int64_t c) {
  const int64_t row = blockIdx.x, origin = row * c;
  const int32_t target = targets[row];
  MaxSum sums{0, 1};
  if (target >= 0) sums = max_sum(logits, origin, c);
  if (threadIdx.x == 0)
    loss[row] = target < 0 ? 0.0f : logf(sums.sum) + (sums.max - load(logits, origin + target));
  if (!dlogits.data) return;
  const float factor = target < 0 ? 0.0f : 1.0f / sums.sum;
  for (int64_t i = threadIdx.x * group; i < c; i += blockDim.x * group) {
    const int n = in_group(i, c);
    float v[group];
    load(logits, origin + i, n, v);
#pragma unroll
    for (int k = 0; k < group; ++k) {
      const float onehot = i + k == target ? 1.0f : 0.0f;
      v[k] = target < 0 ? 0.0f : fast_exp(v[k] - sums.max) * factor - onehot;
    }
    store(dlogits, origin + i, n, v);
  }
}

dim3 block_for(int64_t columns) {
  return dim3(static_cast<unsigned>(row_threads(columns)));
}

}  // namespace

void softmax(Stream s, const In& x, const Out& y, int64_t rows, int64_t columns) {
  launch(softmax_kernel, dim3(static_cast<unsigned>(rows)), block_for(columns), 0, s, x, y,
         columns);
}

void softmax_grad(Stream s, const In& y, const In& dy, const Out& dx, int64_t rows,
                  int64_t columns) {
  launch(softmax_grad_kernel, dim3(static_cast<unsigned>(rows)), block_for(columns), 0, s, y, dy,
         dx, columns);
}

void cross_entropy(Stream s, const In& logits, const int32_t* targets, float* loss,
                   const Out& dlogits, int64_t rows, int64_t columns) {
  launch(cross_entropy_kernel, dim3(static_cast<unsigned>(rows)), block_for(columns), 0, s, logits,
         targets, loss, dlogits, columns);
}

}  // namespace lockstep::cuda
