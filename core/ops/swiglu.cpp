// The gated activation of Llama's feed-forward layer. Read next: rope.cpp.
#include "core/ops/swiglu.h"

#include "core/ops/common.h"

namespace lockstep {

Tensor swiglu(const Tensor& x) {
  check_float("swiglu", "x", x);
  check(x.ndim() >= 1 && x.dim(-1) % 2 == 0,
        "[swiglu] x {}; gate and up, so an even last dimension, is right", to_string(x));
  const Tensor rows = as_rows(x);
  Shape shape = x.shape();
  shape.back() /= 2;
  Tensor y = Tensor::empty({rows.dim(0), shape.back()}, x.dtype());
  backend().swiglu(rows, y);
  return record("swiglu", y.view(std::move(shape)), {x}, [rows](const Tensor& dy, Grads& grads) {
    const Tensor d = as_rows(dy);
    grads[0].write([&](Tensor& dx, bool accumulate) {
      Tensor dx_rows = dx.view(rows.shape());
      backend().swiglu_grad(rows, d, dx_rows, accumulate);
    });
  });
}

}  // namespace lockstep
