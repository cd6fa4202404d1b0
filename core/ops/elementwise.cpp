// The two elementwise ops, by number of inputs. Read next: reduce.cpp.
#include "core/ops/elementwise.h"

#include <algorithm>

#include "core/ops/common.h"

namespace lockstep {

Tensor unary(const char* op, const Unary& f, const Tensor& x) {
  check_float(op, "x", x);
  Tensor y = empty_like(x);
  backend().unary(f, x, y);
  return record(op, y, {x}, [f, x = x.detach()](const Tensor& dy, Grads& grads) {
    grads[0].write(
        [&](Tensor& dx, bool accumulate) { backend().unary_grad(f, x, dy, dx, accumulate); });
  });
}

namespace {

Shape broadcast_shape(const char* op, const Tensor& a, const Tensor& b) {
  const Shape &sa = a.shape(), &sb = b.shape();
  Shape shape(std::max(sa.size(), sb.size()));
  for (size_t i = 0; i < shape.size(); ++i) {  // i counts from the right
    const int64_t da = i < sa.size() ? sa[sa.size() - 1 - i] : 1;
    const int64_t db = i < sb.size() ? sb[sb.size() - 1 - i] : 1;
    check(da == db || da == 1 || db == 1,
          "[{}] a {}, b {}; sizes must be equal or 1, aligned at the right", op, to_string(a),
          to_string(b));
    shape[shape.size() - 1 - i] = da == 1 ? db : da;
  }
  return shape;
}

// Contributes to the gradient of a, or of b if `second`. Where the derivative is 1, dy is passed
// on as it is; where the input was repeated, the product is formed in fp32 and summed.
void contribute(const Binary& f, const Tensor& a, const Tensor& b, const Tensor& dy, bool second,
                GradSlot slot) {
  if (!slot.needed()) return;
  const Tensor& input = second ? b : a;
  const bool repeats = input.shape() != dy.shape();
  const bool is_one = std::holds_alternative<Add>(f) || (std::holds_alternative<Sub>(f) && !second);
  if (is_one && !repeats) return slot.add(dy);
  slot.write([&](Tensor& d, bool accumulate) {
    if (is_one) return sum_repeats(dy, d, accumulate);
    const Tensor wide_a = repeated(a, dy.shape()), wide_b = repeated(b, dy.shape());
    if (!repeats) return backend().binary_grad(f, wide_a, wide_b, dy, second, d, accumulate);
    Tensor wide = Tensor::empty(dy.shape());
    backend().binary_grad(f, wide_a, wide_b, dy, second, wide, false);
    sum_repeats(wide, d, accumulate);
  });
}

}  // namespace

Tensor binary(const char* op, const Binary& f, const Tensor& a, const Tensor& b) {
  check_float(op, "a", a);
  check_float(op, "b", b);
  check(a.dtype() == b.dtype(), "[{}] a {}, b {}; the types must be equal, cast one", op,
        to_string(a), to_string(b));
  Tensor y = Tensor::empty(broadcast_shape(op, a, b), a.dtype());
  backend().binary(f, repeated(a, y.shape()), repeated(b, y.shape()), y);
  return record(op, y, {a, b}, [f, a = a.detach(), b = b.detach()](const Tensor& dy, Grads& grads) {
    contribute(f, a, b, dy, false, grads[0]);
    contribute(f, a, b, dy, true, grads[1]);
  });
}

}  // namespace lockstep
