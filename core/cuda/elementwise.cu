// Elementwise kernels of one operand: fill, copy, the unary functors and their gradients; and
// swiglu, which is two operands in one tensor. Read next: binary.cu, reduce.cu.
#include "core/cuda/kernels.h"
#include "core/cuda/map.h"

namespace lockstep::cuda {

namespace {

struct Constant {
  float value;
  LOCKSTEP_HD float operator()(const float*) const { return value; }
};
struct Same {
  LOCKSTEP_HD float operator()(const float* v) const { return v[0]; }
};
template <class F>
struct Apply {
  F f;
  LOCKSTEP_HD float operator()(const float* v) const { return f(v[0]); }
};
template <class F>
struct ApplyGrad {
  F f;
  LOCKSTEP_HD float operator()(const float* v) const { return v[1] * f.grad(v[0], f(v[0])); }
};

// Launch: grid-stride over groups of 8 of y [rows, columns]. Bytes are the least possible.
__global__ void __launch_bounds__(map_threads)
    swiglu_kernel(In x, Out y, int64_t rows, int64_t columns) {
  const int64_t per_row = (columns + group - 1) / group, step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t g = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; g < rows * per_row; g += step) {
    const int64_t row = g / per_row, column = g % per_row * group;
    const int n = in_group(column, columns);
    float gate[group], up[group], out[group];
    load(x, row * 2 * columns + column, n, gate);
    load(x, (row * 2 + 1) * columns + column, n, up);
#pragma unroll
    for (int i = 0; i < group; ++i) out[i] = Silu()(gate[i]) * up[i];
    store(y, row * columns + column, n, out);
  }
}

// Launched likewise. Bytes are the least possible (x, dy and dx once).
__global__ void __launch_bounds__(map_threads)
    swiglu_grad_kernel(In x, In dy, Out dx, int64_t rows, int64_t columns) {
  const int64_t per_row = (columns + group - 1) / group, step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t g = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; g < rows * per_row; g += step) {
    const int64_t row = g / per_row, column = g % per_row * group;
    const int n = in_group(column, columns);
    float gate[group], up[group], d[group], out[group];
    load(x, row * 2 * columns + column, n, gate);
    load(x, (row * 2 + 1) * columns + column, n, up);
    load(dy, row * columns + column, n, d);
#pragma unroll
    for (int i = 0; i < group; ++i) out[i] = d[i] * up[i] * Silu().grad(gate[i], 0.0f);
    store(dx, row * 2 * columns + column, n, out);
#pragma unroll
    for (int i = 0; i < group; ++i) out[i] = d[i] * Silu()(gate[i]);
    store(dx, (row * 2 + 1) * columns + column, n, out);
  }
}

}  // namespace

void fill(Stream s, const Dims<1>& dims, const Out& out, float value) {
  launch_map(s, Map<0, Constant>{dims, {}, out, {value}});
}

void copy(Stream s, const Dims<2>& dims, const In& x, const Out& out) {
  launch_map(s, Map<1, Same>{dims, {x}, out, {}});
}

void unary(Stream s, const Unary& f, const Dims<2>& dims, const In& x, const Out& y) {
  std::visit(
      [&](const auto& fn) {
        using F = Apply<std::decay_t<decltype(fn)>>;
        launch_map(s, Map<1, F>{dims, {x}, y, {fn}});
      },
      f);
}

void unary_grad(Stream s, const Unary& f, const Dims<3>& dims, const In& x, const In& dy,
                const Out& dx) {
  std::visit(
      [&](const auto& fn) {
        using F = ApplyGrad<std::decay_t<decltype(fn)>>;
        launch_map(s, Map<2, F>{dims, {x, dy}, dx, {fn}});
      },
      f);
}

void swiglu(Stream s, const In& x, const Out& y, int64_t rows, int64_t columns) {
  const int64_t groups = rows * ((columns + group - 1) / group);
  launch(swiglu_kernel, blocks_for(groups, map_threads), dim3(map_threads), 0, s, x, y, rows,
         columns);
}

void swiglu_grad(Stream s, const In& x, const In& dy, const Out& dx, int64_t rows,
                 int64_t columns) {
  const int64_t groups = rows * ((columns + group - 1) / group);
  launch(swiglu_grad_kernel, blocks_for(groups, map_threads), dim3(map_threads), 0, s, x, dy, dx,
         rows, columns);
}

}  // namespace lockstep::cuda
