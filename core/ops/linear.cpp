// Matrix products and their gradients, which are matrix products too: for y = a b, da = dy b^T and
// db = a^T dy. A parameter's gradient is written by the GEMM itself, into the fp32 buffer where it
// will be communicated from. Read next: ../cpu/gemm.cpp.
#include "core/ops/linear.h"

#include "core/ops/common.h"

namespace lockstep {

namespace {

// What gemm() reads in place: a matrix stored by rows or by columns, possibly with gaps.
Tensor gemm_layout(const Tensor& t) {
  const int n = t.ndim();
  const int64_t rows = t.shape()[n - 2], cols = t.shape()[n - 1];
  const int64_t down = t.strides()[n - 2], along = t.strides()[n - 1];
  const bool by_rows = along == 1 && down >= cols, by_columns = down == 1 && along >= rows;
  const bool batches_apart = n == 2 || t.shape()[0] == 1 || t.strides()[0] != 0;
  return (by_rows || by_columns) && batches_apart ? t : compact(t);
}

void product(const Tensor& a, const Tensor& b, Tensor& out, const GemmOptions& options = {}) {
  backend().gemm(gemm_layout(a), gemm_layout(b), out, options);
}

void check_linear(const char* op, const Tensor& x, const Tensor& w, const Tensor& b) {
  check_float(op, "x", x);
  check(w.defined() && w.dtype() == x.dtype() && (!b.defined() || b.dtype() == x.dtype()),
        "[{}] x {}, w {}, b {}; the types must be equal, cast one", op, to_string(x), to_string(w),
        to_string(b));
  check(x.ndim() >= 1 && w.ndim() == 2 && x.dim(-1) == w.dim(1),
        "[{}] x {}, w {}; the last dimensions must be equal", op, to_string(x), to_string(w));
  check(!b.defined() || b.shape() == Shape{w.dim(0)},
        "[{}] w {}, b {}; one bias per row of w is right", op, to_string(w), to_string(b));
}

Shape with_columns(Shape shape, int64_t columns) {
  shape.back() = columns;
  return shape;
}

// x w^T + b for x [rows, k], in the shape that the layer's input had.
Tensor forward(const Tensor& x, const Tensor& w, const Tensor& b, const Shape& shape) {
  Tensor y = Tensor::empty({x.dim(0), w.dim(0)}, x.dtype());
  const Tensor bias = b.defined() ? compact(b) : b;
  product(x, w.transposed(), y, {.bias = b.defined() ? &bias : nullptr});
  return y.view(with_columns(shape, w.dim(0)));
}

// A layer [rows, n] before and after gelu.
struct Hidden {
  Tensor pre, out;
};

Hidden forward_gelu(const Tensor& x, const Tensor& w, const Tensor& b, const Unary& gelu) {
  const Shape shape{x.dim(0), w.dim(0)};
  Hidden h{Tensor::empty(shape, x.dtype()), Tensor::empty(shape, x.dtype())};
  const Tensor bias = b.defined() ? compact(b) : b;
  backend().gemm_gelu(gemm_layout(x), gemm_layout(w.transposed()), b.defined() ? &bias : nullptr,
                      gelu, h.pre, h.out);
  return h;
}

// kernel(db, accumulate) with the fp32 buffer of a bias, null if its gradient is not needed.
template <class Kernel>
void with_bias_grad(GradSlot slot, Kernel&& kernel) {
  if (!slot.needed()) return kernel(nullptr, false);
  write_f32(slot, [&](Tensor& db, bool accumulate) { kernel(&db, accumulate); });
}

// The gradients of x and w for dy [rows, n].
void backward_products(const Tensor& x, const Tensor& w, const Tensor& dy, GradSlot dx_slot,
                       GradSlot dw_slot) {
  dx_slot.write([&](Tensor& dx, bool accumulate) {
    Tensor rows = dx.view(x.shape());
    product(dy, w, rows, {.accumulate = accumulate});
  });
  dw_slot.write([&](Tensor& dw, bool accumulate) {
    product(dy.transposed(), x, dw, {.accumulate = accumulate});
  });
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  check_float("matmul", "a", a);
  check_float("matmul", "b", b);
  const int n = a.ndim();
  check((n == 2 || n == 3) && b.ndim() == n && a.dim(-1) == b.dim(-2) &&
            (n == 2 || a.dim(0) == b.dim(0)),
        "[matmul] a {}, b {}; [m, k] and [k, n], or both with one equal batch dimension, is right",
        to_string(a), to_string(b));
  check(a.dtype() == b.dtype(), "[matmul] a {}, b {}; the types must be equal, cast one",
        to_string(a), to_string(b));
  Shape shape = a.shape();
  shape.back() = b.dim(-1);
  Tensor y = Tensor::empty(std::move(shape), a.dtype());
  product(a, b, y);
  return record("matmul", y, {a, b},
                [a = a.detach(), b = b.detach()](const Tensor& dy, Grads& grads) {
                  grads[0].write([&](Tensor& da, bool accumulate) {
                    product(dy, b.transposed(), da, {.accumulate = accumulate});
                  });
                  grads[1].write([&](Tensor& db, bool accumulate) {
                    product(a.transposed(), dy, db, {.accumulate = accumulate});
                  });
                });
}

Tensor linear(const Tensor& x, const Tensor& w, const Tensor& b) {
  check_linear("linear", x, w, b);
  const Tensor rows = as_rows(x);
  return record("linear", forward(rows, w, b, x.shape()), {x, w, b},
                [rows, w = w.detach()](const Tensor& dy, Grads& grads) {
                  const Tensor d = as_rows(dy);
                  backward_products(rows, w, d, grads[0], grads[1]);
                  write_f32(grads[2], [&](Tensor& db, bool accumulate) {
                    backend().sum_rows(d, db, accumulate);
                  });
                });
}

Tensor linear_gelu(const Tensor& x, const Tensor& w, const Tensor& b, GeluKind kind) {
  check_linear("linear_gelu", x, w, b);
  const Unary gelu = gelu_functor(kind);
  const Tensor rows = as_rows(x);
  const Hidden h = forward_gelu(rows, w, b, gelu);
  const Tensor y = h.out.view(with_columns(x.shape(), w.dim(0)));
  return record("linear_gelu", y, {x, w, b},
                [gelu, rows, pre = h.pre, w = w.detach()](const Tensor& dy, Grads& grads) {
                  const Tensor d = as_rows(dy);
                  Tensor dpre = empty_like(d);
                  with_bias_grad(grads[2], [&](Tensor* db, bool accumulate) {
                    backend().gelu_bias_grad(gelu, pre, d, dpre, db, accumulate);
                  });
                  backward_products(rows, w, dpre, grads[0], grads[1]);
                });
}

Tensor mlp_gelu(const Tensor& x, const Tensor& w1, const Tensor& b1, const Tensor& w2,
                const Tensor& b2, GeluKind kind) {
  check_linear("mlp_gelu", x, w1, b1);
  const Unary gelu = gelu_functor(kind);
  const Tensor rows = as_rows(x);
  const Hidden h = forward_gelu(rows, w1, b1, gelu);
  check_linear("mlp_gelu", h.out, w2, b2);
  return record(
      "mlp_gelu", forward(h.out, w2, b2, x.shape()), {x, w1, b1, w2, b2},
      [gelu, rows, h, w1 = w1.detach(), w2 = w2.detach()](const Tensor& dy, Grads& grads) {
        const Tensor d = as_rows(dy);
        grads[3].write([&](Tensor& dw, bool accumulate) {
          product(d.transposed(), h.out, dw, {.accumulate = accumulate});
        });
        write_f32(grads[4],
                  [&](Tensor& db, bool accumulate) { backend().sum_rows(d, db, accumulate); });
        Tensor dpre = empty_like(h.pre);
        with_bias_grad(grads[2], [&](Tensor* db, bool accumulate) {
          backend().gemm_gelu_grad(d, gemm_layout(w2), gelu, h.pre, dpre, db, accumulate);
        });
        backward_products(rows, w1, dpre, grads[0], grads[1]);
      });
}

}  // namespace lockstep
