// Normalisation of rows. The gradient kernels give dx, dw and db in one reading of x. dx goes to
// its final place; dw and db are small, so they are handed over as tensors. Read next: softmax.cpp.
#include "core/ops/norm.h"

#include "core/ops/common.h"

namespace lockstep {

namespace {

void check_norm(const char* op, const Tensor& x, const Tensor& w) {
  check_float(op, "x", x);
  check(x.ndim() >= 1 && w.defined() && w.dtype() == x.dtype() && w.shape() == Shape{x.dim(-1)},
        "[{}] x {}, parameter {}; one of x's type per element of a row is right", op, to_string(x),
        to_string(w));
}

// A temporary for the gradient of a parameter, undefined where none is needed.
Tensor gradient_for(const GradSlot& slot, const Tensor& parameter) {
  return slot.needed() ? Tensor::empty(parameter.shape()) : Tensor();
}

Tensor* if_defined(Tensor& t) {
  return t.defined() ? &t : nullptr;
}

// Calls kernel(dx or null, accumulate) with the destination of x's gradient, as rows.
template <class Kernel>
void with_dx(GradSlot slot, const Tensor& rows, Kernel&& kernel) {
  if (!slot.needed()) return kernel(nullptr, false);
  slot.write([&](Tensor& dx, bool accumulate) {
    Tensor dx_rows = dx.view(rows.shape());
    kernel(&dx_rows, accumulate);
  });
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& w, const Tensor& b, float eps) {
  check_norm("layer_norm", x, w);
  check_norm("layer_norm", x, b);
  const Tensor rows = as_rows(x);
  Tensor y = empty_like(rows);
  Tensor mean = Tensor::empty({rows.dim(0)}), rstd = Tensor::empty({rows.dim(0)});
  backend().layer_norm(rows, compact(w), compact(b), eps, y, mean, rstd);
  return record("layer_norm", y.view(x.shape()), {x, w, b},
                [rows, mean, rstd, w = w.detach()](const Tensor& dy, Grads& grads) {
                  const Tensor d = as_rows(dy), weight = compact(w);
                  Tensor dw = gradient_for(grads[1], w), db = gradient_for(grads[2], w);
                  with_dx(grads[0], rows, [&](Tensor* dx, bool accumulate) {
                    backend().layer_norm_grad(rows, weight, mean, rstd, d, dx, accumulate,
                                              if_defined(dw), false, if_defined(db), false);
                  });
                  if (dw.defined()) grads[1].add(dw);
                  if (db.defined()) grads[2].add(db);
                });
}

Tensor rms_norm(const Tensor& x, const Tensor& w, float eps) {
  check_norm("rms_norm", x, w);
  const Tensor rows = as_rows(x);
  Tensor y = empty_like(rows);
  Tensor rstd = Tensor::empty({rows.dim(0)});
  backend().rms_norm(rows, compact(w), eps, y, rstd);
  return record("rms_norm", y.view(x.shape()), {x, w},
                [rows, rstd, w = w.detach()](const Tensor& dy, Grads& grads) {
                  const Tensor d = as_rows(dy), weight = compact(w);
                  Tensor dw = gradient_for(grads[1], w);
                  with_dx(grads[0], rows, [&](Tensor* dx, bool accumulate) {
                    backend().rms_norm_grad(rows, weight, rstd, d, dx, accumulate, if_defined(dw),
                                            false);
                  });
                  if (dw.defined()) grads[1].add(dw);
                });
}

}  // namespace lockstep
