// Optimizer steps, each one pass over flat memory, and the squared norms of cells that gradient
// clipping and the finiteness check are made of. Read next: optim/README.md.
#include <cmath>

#include "core/cpu/cpu_backend.h"
#include "core/cpu/rows.h"

namespace lockstep {

namespace {

// step(begin, n, param) updates n elements; param [n] fp32 is the master copy, written to the
// narrow parameter afterwards where there is one.
template <class Step>
void update(Tensor& param, Tensor* master, Step&& step) {
  constexpr int64_t grain = 4096;
  float* values = master ? master->data<float>() : param.data<float>();
  const Sink narrow(param);
  parallel_pieces(param.numel(), grain, [&](int64_t begin, int64_t end) {
    step(begin, end - begin, values + begin);
    if (master) narrow.write(values + begin, begin, end - begin);
  });
}

// Each square is exact in fp64.
double sum_squares(const float* x, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

}  // namespace

// Adam with decoupled weight decay (Loshchilov and Hutter, 2019, algorithm 2):
//   p -= lr wd p;  p -= lr (m / bc1) / (sqrt(v / bc2) + eps)
// With v frozen, what comes as the gradient is the momentum; and an element that never had a
// gradient has v = 0 and cannot be scaled: it is left alone, whatever noise a codec put into it.
void CpuBackend::adamw(const AdamWOptions& options, const StepScalars& scalars, const Tensor& grad,
                       Tensor& param, Tensor* master, Tensor& m, Tensor& v) {
  if (scalars.skip) return;
  const float beta1 = options.beta1, beta2 = options.beta2, eps = options.eps;
  const float grad_scale = scalars.grad_scale, keep = 1.0f - scalars.lr * options.weight_decay;
  const float step_size = scalars.lr / scalars.bias_correction1;
  const float root_scale = 1.0f / std::sqrt(scalars.bias_correction2);
  update(param, master, [&](int64_t begin, int64_t n, float* p) {
    const float* gs = grad.data<float>() + begin;
    float *ms = m.data<float>() + begin, *vs = v.data<float>() + begin;
    if (scalars.variance_frozen) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        const bool seen = vs[i] > 0.0f;
        ms[i] = seen ? gs[i] * grad_scale : 0.0f;
        const float change = step_size * ms[i] / (std::sqrt(vs[i]) * root_scale + eps);
        p[i] = keep * p[i] - (seen ? change : 0.0f);
      }
      return;
    }
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const float g = gs[i] * grad_scale;
      ms[i] = beta1 * ms[i] + (1.0f - beta1) * g;
      vs[i] = beta2 * vs[i] + (1.0f - beta2) * g * g;
      p[i] = keep * p[i] - step_size * ms[i] / (std::sqrt(vs[i]) * root_scale + eps);
    }
  });
}

// buffer = momentum buffer + g + wd p;  p -= lr buffer (Sutskever et al., 2013, as in PyTorch).
void CpuBackend::sgd(const SgdOptions& options, const StepScalars& scalars, const Tensor& grad,
                     Tensor& param, Tensor* master, Tensor& momentum) {
  if (scalars.skip) return;
  const float mu = options.momentum, decay = options.weight_decay, lr = scalars.lr;
  const float grad_scale = scalars.grad_scale;
  update(param, master, [&](int64_t begin, int64_t n, float* p) {
    const float* gs = grad.data<float>() + begin;
    float* buffer = momentum.data<float>() + begin;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      buffer[i] = mu * buffer[i] + (gs[i] * grad_scale + decay * p[i]);
      p[i] -= lr * buffer[i];
    }
  });
}

void CpuBackend::cell_norms(const Tensor& x, Tensor& partials) {
  const float* values = x.data<float>();
  double* norms = partials.data<double>();
  parallel_pieces(x.numel(), cell_size, [&](int64_t begin, int64_t end) {
    norms[begin / cell_size] = sum_squares(values + begin, end - begin);
  });
}

}  // namespace lockstep
