// Elementwise kernels of two operands and their gradients; operands may repeat (stride 0).
// Read next: reduce.cu.
#include "core/cuda/kernels.h"
#include "core/cuda/map.h"

namespace lockstep::cuda {

namespace {

template <class F>
struct Apply {
  F f;
  LOCKSTEP_HD float operator()(const float* v) const { return f(v[0], v[1]); }
};
// v: a, b, dy
template <class F>
struct GradA {
  F f;
  LOCKSTEP_HD float operator()(const float* v) const { return v[2] * f.grad_a(v[0], v[1]); }
};
template <class F>
struct GradB {
  F f;
  LOCKSTEP_HD float operator()(const float* v) const { return v[2] * f.grad_b(v[0], v[1]); }
};

}  // namespace

void binary(Stream s, const Binary& f, const Dims<3>& dims, const In& a, const In& b,
            const Out& y) {
  std::visit(
      [&](const auto& fn) {
        using F = Apply<std::decay_t<decltype(fn)>>;
        launch_map(s, Map<2, F>{dims, {a, b}, y, {fn}});
      },
      f);
}

void binary_grad(Stream s, const Binary& f, const Dims<4>& dims, const In& a, const In& b,
                 const In& dy, bool second, const Out& d) {
  std::visit(
      [&](const auto& fn) {
        using F = std::decay_t<decltype(fn)>;
        if (second)
          launch_map(s, Map<3, GradB<F>>{dims, {a, b, dy}, d, {fn}});
        else
          launch_map(s, Map<3, GradA<F>>{dims, {a, b, dy}, d, {fn}});
      },
      f);
}

}  // namespace lockstep::cuda
