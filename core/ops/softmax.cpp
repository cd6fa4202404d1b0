// Softmax; its gradient needs only its result. Read next: swiglu.cpp.
#include "core/ops/softmax.h"

#include "core/ops/common.h"

namespace lockstep {

Tensor softmax(const Tensor& x) {
  check_float("softmax", "x", x);
  check(x.ndim() >= 1, "[softmax] x {}; at least one dimension is right", to_string(x));
  const Tensor rows = compact(x);
  Tensor y = empty_like(x);
  backend().softmax(rows, y);
  return record("softmax", y, {x}, [y](const Tensor& dy, Grads& grads) {
    const Tensor d = compact(dy);
    grads[0].write(
        [&](Tensor& dx, bool accumulate) { backend().softmax_grad(y, d, dx, accumulate); });
  });
}

}  // namespace lockstep
