// The output projection and the loss as one op. Its logits would be the largest tensor of a
// language model, so they exist in fp32 only for a few rows at a time: those rows' losses and
// gradients are formed at once, and only the gradients are kept, in x's type.
#include "core/ops/cross_entropy.h"

#include <algorithm>

#include "core/ops/common.h"
#include "core/ops/embedding.h"

namespace lockstep {

namespace {

// Rows whose logits are formed together: about 32 MB of them, but enough rows for an efficient
// GEMM. A property of the model, not of the machine, so that results do not depend on threads.
int64_t chunk_rows(int64_t vocab) {
  return std::max<int64_t>(64, (int64_t{8} << 20) / std::max<int64_t>(vocab, 1));
}

void check_inputs(const Tensor& x, const Tensor& w, const Tensor& targets) {
  check_float("cross_entropy", "x", x);
  check(w.defined() && x.dtype() == w.dtype() && x.ndim() == 2 && w.ndim() == 2 &&
            x.dim(1) == w.dim(1),
        "[cross_entropy] x {}, w {}; [n, d] and [v, d] of one type are right", to_string(x),
        to_string(w));
  check(targets.defined() && targets.shape() == Shape{x.dim(0)},
        "[cross_entropy] x {}, targets {}; one i32 per row of x is right", to_string(x),
        to_string(targets));
  check_ids("cross_entropy", targets, -1, w.dim(0));
}

// Losses [n]; fills dlogits [n, v] if it is defined.
Tensor rows_of_loss(const Tensor& x, const Tensor& w, const Tensor& targets,
                    const Tensor& dlogits) {
  const int64_t n = x.dim(0), v = w.dim(0), chunk = std::min(n, chunk_rows(v));
  Tensor losses = Tensor::empty({n});
  const Tensor chunk_buffer = Tensor::empty({chunk, v});
  for (int64_t begin = 0; begin < n; begin += chunk) {
    const int64_t end = std::min(n, begin + chunk);
    Tensor logits = chunk_buffer.rows(0, end - begin), loss = losses.rows(begin, end);
    Tensor d = dlogits.defined() ? dlogits.rows(begin, end) : Tensor();
    backend().gemm(x.rows(begin, end), w.transposed(), logits, {});
    backend().cross_entropy(logits, targets.rows(begin, end), loss, d.defined() ? &d : nullptr);
  }
  return losses;
}

}  // namespace

Tensor linear_cross_entropy(const Tensor& x, const Tensor& w, const Tensor& targets) {
  check_inputs(x, w, targets);
  const Tensor rows = compact(x.detach()), weight = compact(w.detach());
  Tensor dlogits;
  if (needs_grad({x, w})) dlogits = Tensor::empty({x.dim(0), w.dim(0)}, x.dtype());
  const Tensor losses = rows_of_loss(rows, weight, targets, dlogits);
  Tensor y = Tensor::empty({1});
  backend().reduce(Reduction::sum, losses, y, false);
  return record(
      "cross_entropy", y, {x, w}, [rows, weight, dlogits](const Tensor& dy, Grads& grads) {
        grads[0].write([&](Tensor& dx, bool accumulate) {
          backend().gemm(dlogits, weight, dx, {.alpha = &dy, .accumulate = accumulate});
        });
        grads[1].write([&](Tensor& dw, bool accumulate) {
          backend().gemm(dlogits.transposed(), rows, dw, {.alpha = &dy, .accumulate = accumulate});
        });
      });
}

Tensor linear_cross_entropy_rows(const Tensor& x, const Tensor& w, const Tensor& targets) {
  check_inputs(x, w, targets);
  return rows_of_loss(compact(x.detach()), compact(w.detach()), targets, Tensor());
}

}  // namespace lockstep
