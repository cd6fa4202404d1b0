// Dropout keeps no mask: the gradient draws the same bits again. Read next: cross_entropy.cpp.
#include "core/ops/dropout.h"

#include "core/ops/common.h"

namespace lockstep {

Tensor dropout(const Tensor& x, float p, const DropoutKey& key) {
  check_float("dropout", "x", x);
  check(p >= 0.0f && p < 1.0f, "[dropout] p {}; 0 <= p < 1 is right", p);
  check(x.ndim() >= 1 && key.scalars,
        "[dropout] x {}, {} step scalars; a leading sample dimension and scalars are right",
        to_string(x), key.scalars ? "with" : "no");
  if (p == 0.0f) return x;
  Tensor y = empty_like(x);
  backend().dropout(compact(x), p, key, y, false);
  return record("dropout", y, {x}, [p, key](const Tensor& dy, Grads& grads) {
    const Tensor d = compact(dy);
    grads[0].write(
        [&](Tensor& dx, bool accumulate) { backend().dropout(d, p, key, dx, accumulate); });
  });
}

}  // namespace lockstep
