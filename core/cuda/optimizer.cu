// Optimizer steps, each one pass over flat memory, and the squared norms of cells. What changes
// per step is read from StepScalars by the kernel, so a captured graph of it stays valid.
#include "core/cuda/device.h"
#include "core/cuda/kernels.h"

namespace lockstep::cuda {

namespace {

constexpr int threads = 256;

__device__ Out f32_out(float* p, bool aligned) {
  return {p, false, aligned, false};
}

// Adam with decoupled weight decay, as in core/cpu/optimizer.cpp.
// Launch: grid-stride over groups of 8. Bytes per element: the least possible (28, and 2 more for a
// bf16 parameter).
struct AdamWStep {
  AdamW options;
  const StepScalars* scalars;
  const float* grad;
  float *master, *m, *v;
  Out param;     // the bf16 copy of the master, or null
  bool aligned;  // grad, master, m, v
  int64_t n;
};

__global__ void __launch_bounds__(threads) adamw_kernel(AdamWStep a) {
  const StepScalars now = *a.scalars;
  if (now.skip) return;
  const bool frozen = now.variance_frozen != 0;
  const float masked = frozen ? 0.0f : -1.0f;  // the variance of what is left alone
  const float beta1 = frozen ? 0.0f : a.options.beta1, eps = a.options.eps;
  const float beta2 = frozen ? 1.0f : a.options.beta2, gain2 = frozen ? 0.0f : 1.0f - beta2;
  const float keep = 1.0f - now.lr * a.options.weight_decay;
  const float step_size = now.lr / now.bias_correction1;
  const float root_scale = 1.0f / sqrtf(now.bias_correction2);
  const int64_t step = int64_t{gridDim.x} * threads * group;
  for (int64_t i = (int64_t{blockIdx.x} * threads + threadIdx.x) * group; i < a.n; i += step) {
    const int n = in_group(i, a.n);
    float g[group], m[group], v[group], p[group];
    load({a.grad, false, a.aligned}, i, n, g);
    load({a.m, false, a.aligned}, i, n, m);
    load({a.v, false, a.aligned}, i, n, v);
    load({a.master, false, a.aligned}, i, n, p);
#pragma unroll
    for (int k = 0; k < group; ++k) {
      const float scaled = g[k] * now.grad_scale;
      m[k] = beta1 * m[k] + (1.0f - beta1) * scaled;
      v[k] = beta2 * v[k] + gain2 * scaled * scaled;
      float root = sqrtf(v[k]) * root_scale + eps;
      if (v[k] == masked) m[k] = 0.0f, root = 1.0f;
      p[k] = keep * p[k] - step_size * m[k] / root;
    }
    store(f32_out(a.m, a.aligned), i, n, m);
    store(f32_out(a.v, a.aligned), i, n, v);
    store(f32_out(a.master, a.aligned), i, n, p);
    if (a.param.data) store(a.param, i, n, p);
  }
}

// As in core/cpu/optimizer.cpp. Bytes per element: the least possible (20, and 2 more for a bf16
// parameter).
struct SgdStep {
  Sgd options;
  const StepScalars* scalars;
  const float* grad;
  float *master, *momentum;
  Out param;
  bool aligned;
  int64_t n;
};

__global__ void __launch_bounds__(threads) sgd_kernel(SgdStep a) {
  const StepScalars now = *a.scalars;
  if (now.skip) return;
  const int64_t step = int64_t{gridDim.x} * threads * group;
  for (int64_t i = (int64_t{blockIdx.x} * threads + threadIdx.x) * group; i < a.n; i += step) {
    const int n = in_group(i, a.n);
    float g[group], b[group], p[group];
    load({a.grad, false, a.aligned}, i, n, g);
    load({a.momentum, false, a.aligned}, i, n, b);
    load({a.master, false, a.aligned}, i, n, p);
#pragma unroll
    for (int k = 0; k < group; ++k) {
      b[k] = a.options.momentum * b[k] + (g[k] * now.grad_scale + a.options.weight_decay * p[k]);
      p[k] -= now.lr * b[k];
    }
    store(f32_out(a.momentum, a.aligned), i, n, b);
    store(f32_out(a.master, a.aligned), i, n, p);
    if (a.param.data) store(a.param, i, n, p);
  }
}

// Launch: a block for each cell of 4096. Bytes per element: the least possible (4).
constexpr int64_t cell = 4096;

__global__ void __launch_bounds__(threads)
    cell_norms_kernel(const float* x, bool aligned, double* partials, int64_t n) {
  const int64_t begin = blockIdx.x * cell, end = begin + cell < n ? begin + cell : n;
  double sum = 0;  // each square is exact
  for (int64_t i = begin + threadIdx.x * group; i < end; i += threads * group) {
    float v[group];
    load({x, false, aligned}, i, in_group(i, end), v);
#pragma unroll
    for (int k = 0; k < group; ++k) sum += static_cast<double>(v[k]) * static_cast<double>(v[k]);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

bool aligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

}  // namespace

void adamw(Stream s, const AdamW& options, const StepScalars* scalars, const float* grad,
           float* master, const Out& param, float* m, float* v, int64_t n) {
  const bool vectors = aligned(grad) && aligned(master) && aligned(m) && aligned(v);
  launch(adamw_kernel, blocks_for((n + group - 1) / group, threads), dim3(threads), 0, s,
         AdamWStep{options, scalars, grad, master, m, v, param, vectors, n});
}

void sgd(Stream s, const Sgd& options, const StepScalars* scalars, const float* grad, float* master,
         const Out& param, float* momentum, int64_t n) {
  const bool vectors = aligned(grad) && aligned(master) && aligned(momentum);
  launch(sgd_kernel, blocks_for((n + group - 1) / group, threads), dim3(threads), 0, s,
         SgdStep{options, scalars, grad, master, momentum, param, vectors, n});
}

void cell_norms(Stream s, const float* x, double* partials, int64_t n) {
  launch(cell_norms_kernel, dim3(static_cast<unsigned>((n + cell - 1) / cell)), dim3(threads), 0, s,
         x, aligned(x), partials, n);
}

}  // namespace lockstep::cuda
