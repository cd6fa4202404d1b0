// Reductions and cast. Read next: shape.cpp.
#include "core/ops/reduce.h"

#include "core/ops/common.h"
#include "core/ops/elementwise.h"

namespace lockstep {

namespace {

// The shape of x with the reduced dimensions kept as 1, and without them.
struct ReducedShapes {
  Shape kept, dropped;
  int64_t count;  // elements of x per element of the result
};

ReducedShapes reduced(const char* op, const Tensor& x, const std::vector<int>& dims) {
  std::vector<bool> gone(x.ndim(), dims.empty());
  for (int d : dims) {
    const int64_t at = axis(op, x, d);
    check(!gone[at], "[{}] dimension {} of {} is named twice", op, d, to_string(x));
    gone[at] = true;
  }
  ReducedShapes r{x.shape(), {}, 1};
  for (int i = 0; i < x.ndim(); ++i) {
    if (!gone[i]) {
      r.dropped.push_back(x.shape()[i]);
    } else {
      r.count *= x.shape()[i];
      r.kept[i] = 1;
    }
  }
  check(r.count > 0, "[{}] {} has no elements to reduce", op, to_string(x));
  return r;
}

// y with the reduced dimensions kept as 1.
Tensor reduce(Reduction r, const Tensor& x, const ReducedShapes& shapes) {
  Tensor y = Tensor::empty(shapes.kept, x.dtype());
  backend().reduce(r, x, y, false);
  return y;
}

// A gradient of the result, any strides, as a view that repeats it over x's shape.
Tensor over_input(const Tensor& dy, const Shape& kept, const Shape& input) {
  return repeated(compact(dy).view(kept), input);
}

}  // namespace

Tensor sum(const Tensor& x, const std::vector<int>& dims, bool keepdim) {
  check_float("sum", "x", x);
  const ReducedShapes shapes = reduced("sum", x, dims);
  const Tensor y = reduce(Reduction::sum, x, shapes);
  return record("sum", keepdim ? y : y.view(shapes.dropped), {x},
                [kept = shapes.kept, input = x.shape()](const Tensor& dy, Grads& grads) {
                  grads[0].add(over_input(dy, kept, input));
                });
}

Tensor mean(const Tensor& x, const std::vector<int>& dims, bool keepdim) {
  check_float("mean", "x", x);
  const ReducedShapes shapes = reduced("mean", x, dims);
  const Tensor y = reduce(Reduction::mean, x, shapes);
  return record("mean", keepdim ? y : y.view(shapes.dropped), {x},
                [shapes, input = x.shape()](const Tensor& dy, Grads& grads) {
                  const Tensor share = scale(dy, 1.0f / static_cast<float>(shapes.count));
                  grads[0].add(over_input(share, shapes.kept, input));
                });
}

Tensor max(const Tensor& x, const std::vector<int>& dims, bool keepdim) {
  check_float("max", "x", x);
  const ReducedShapes shapes = reduced("max", x, dims);
  const Tensor y = reduce(Reduction::max, x, shapes);
  return record("max", keepdim ? y : y.view(shapes.dropped), {x},
                [x = x.detach(), y, shapes](const Tensor& dy, Grads& grads) {
                  const Tensor is_max = equal(x, y);
                  const Tensor ties = reduce(Reduction::sum, is_max, shapes);
                  grads[0].add(mul(is_max, div(compact(dy).view(shapes.kept), ties)));
                });
}

Tensor cast(const Tensor& x, DType dtype) {
  check_float("cast", "x", x);
  check(dtype == DType::f32 || dtype == DType::bf16, "[cast] {} to {}; f32 or bf16 is right",
        to_string(x), name_of(dtype));
  if (x.dtype() == dtype) return x;
  Tensor y = Tensor::empty(x.shape(), dtype);
  backend().copy(x, y, false);
  return record("cast", y, {x}, [](const Tensor& dy, Grads& grads) { grads[0].add(dy); });
}

}  // namespace lockstep
