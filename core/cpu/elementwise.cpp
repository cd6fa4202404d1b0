// Elementwise kernels: fill, copy, the unary and binary functors and their gradients, swiglu.
// One loop serves every functor, type and stride: operands pass through fp32 buffers of `chunk`
// elements. Read next: reduce.cpp.
#include "core/cpu/cpu_backend.h"
#include "core/cpu/walk.h"

namespace lockstep {

namespace {

// f(in[0..N-1], out, n) computes n elements; operand N is the output.
template <int N, class F>
void map(const std::array<const Tensor*, N>& inputs, const Tensor& output, bool accumulate, F&& f) {
  if (output.numel() == 0) return;
  std::array<const Tensor*, N + 1> operands;
  std::copy(inputs.begin(), inputs.end(), operands.begin());
  operands[N] = &output;
  const Walk<N + 1> walk(output.shape(), operands);
  const auto source = [&]<size_t... k>(std::index_sequence<k...>) {
    return std::array<Source, N>{Source(*inputs[k])...};
  }
  (std::make_index_sequence<N>());
  const Sink sink(output, accumulate);

  walk.for_pieces([&](const auto& offsets, int64_t length) {
    alignas(64) float buffer[N + 1][chunk];
    for (int64_t begin = 0; begin < length; begin += chunk) {
      const int64_t n = std::min(chunk, length - begin);
      std::array<const float*, N> in;
      for (int k = 0; k < N; ++k) {
        const int64_t stride = walk.row_stride(k);
        in[k] = read_strided(source[k], offsets[k] + begin * stride, stride, n, buffer[k]);
      }
      f(in, buffer[N], n);
      const int64_t stride = walk.row_stride(N);
      write_strided(buffer[N], sink, offsets[N] + begin * stride, stride, n);
    }
  });
}

}  // namespace

void CpuBackend::fill(Tensor& out, float value) {
  map<0>({}, out, false, [=](const auto&, float* y, int64_t n) { std::fill_n(y, n, value); });
}

void CpuBackend::copy(const Tensor& x, Tensor& out, bool accumulate) {
  map<1>({&x}, out, accumulate,
         [](const auto& in, float* y, int64_t n) { std::copy_n(in[0], n, y); });
}

void CpuBackend::unary(const Unary& f, const Tensor& x, Tensor& y) {
  std::visit(
      [&](const auto& fn) {
        map<1>({&x}, y, false, [fn](const auto& in, float* out, int64_t n) {
          const float* a = in[0];
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) out[i] = fn(a[i]);
        });
      },
      f);
}

void CpuBackend::unary_grad(const Unary& f, const Tensor& x, const Tensor& dy, Tensor& dx,
                            bool accumulate) {
  std::visit(
      [&](const auto& fn) {
        map<2>({&x, &dy}, dx, accumulate, [fn](const auto& in, float* out, int64_t n) {
          const float *a = in[0], *d = in[1];
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) out[i] = d[i] * fn.grad(a[i], fn(a[i]));
        });
      },
      f);
}

void CpuBackend::binary(const Binary& f, const Tensor& a, const Tensor& b, Tensor& y) {
  std::visit(
      [&](const auto& fn) {
        map<2>({&a, &b}, y, false, [fn](const auto& in, float* out, int64_t n) {
          const float *p = in[0], *q = in[1];
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) out[i] = fn(p[i], q[i]);
        });
      },
      f);
}

void CpuBackend::binary_grad(const Binary& f, const Tensor& a, const Tensor& b, const Tensor& dy,
                             bool second, Tensor& d, bool accumulate) {
  std::visit(
      [&](const auto& fn) {
        map<3>({&a, &b, &dy}, d, accumulate, [fn, second](const auto& in, float* out, int64_t n) {
          const float *p = in[0], *q = in[1], *g = in[2];
          if (second) {
#pragma omp simd
            for (int64_t i = 0; i < n; ++i) out[i] = g[i] * fn.grad_b(p[i], q[i]);
          } else {
#pragma omp simd
            for (int64_t i = 0; i < n; ++i) out[i] = g[i] * fn.grad_a(p[i], q[i]);
          }
        });
      },
      f);
}

void CpuBackend::swiglu(const Tensor& x, Tensor& y) {
  const int64_t r = x.dim(0), f = x.dim(1) / 2;
  const Tensor gate = x.view({r, f}, {2 * f, 1}, x.offset());
  const Tensor up = x.view({r, f}, {2 * f, 1}, x.offset() + f);
  map<2>({&gate, &up}, y, false, [](const auto& in, float* out, int64_t n) {
    const float *g = in[0], *u = in[1];
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = Silu()(g[i]) * u[i];
  });
}

void CpuBackend::swiglu_grad(const Tensor& x, const Tensor& dy, Tensor& dx, bool accumulate) {
  const int64_t r = x.dim(0), f = x.dim(1) / 2;
  const Tensor gate = x.view({r, f}, {2 * f, 1}, x.offset());
  const Tensor up = x.view({r, f}, {2 * f, 1}, x.offset() + f);
  const Tensor d_gate = dx.view({r, f}, {2 * f, 1}, dx.offset());
  const Tensor d_up = dx.view({r, f}, {2 * f, 1}, dx.offset() + f);
  map<3>({&gate, &up, &dy}, d_gate, accumulate, [](const auto& in, float* out, int64_t n) {
    const float *g = in[0], *u = in[1], *d = in[2];
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = d[i] * u[i] * Silu().grad(g[i], 0.0f);
  });
  map<2>({&gate, &dy}, d_up, accumulate, [](const auto& in, float* out, int64_t n) {
    const float *g = in[0], *d = in[1];
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = d[i] * Silu()(g[i]);
  });
}

}  // namespace lockstep
