// Rotary position embedding. A rotation's gradient is the rotation back. Read next: attention.cpp.
#include "core/ops/rope.h"

#include <cmath>

#include "core/ops/common.h"

namespace lockstep {

RopeTables rope_tables(int64_t max_len, int64_t head_dim, double theta) {
  check(max_len > 0 && head_dim > 0 && head_dim % 2 == 0 && theta > 0,
        "[rope] max_len {}, head_dim {}, theta {}; positive, and an even head_dim, is right",
        max_len, head_dim, theta);
  const int64_t half = head_dim / 2;
  std::vector<float> cos, sin;
  for (int64_t p = 0; p < max_len; ++p) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) * std::pow(theta, -2.0 * i / head_dim);
      cos.push_back(static_cast<float>(std::cos(angle)));
      sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  CategoryScope scope(Category::buffers);
  return {Tensor::from(cos, {max_len, half}), Tensor::from(sin, {max_len, half})};
}

Tensor rope(const Tensor& qkv, const RopeTables& tables, const Heads& heads) {
  check_float("rope", "qkv", qkv);
  check(qkv.ndim() == 3 && qkv.dim(2) == heads.packed(),
        "[rope] qkv {}; [b, t, {}] is right for {} query and {} key heads of {}", to_string(qkv),
        heads.packed(), heads.n_head, heads.n_kv_head, heads.head_dim);
  check(tables.cos.dim(1) == heads.head_dim / 2 && tables.cos.dim(0) >= qkv.dim(1),
        "[rope] qkv {} of head_dim {}, tables {}; a row per position and head_dim / 2 columns are "
        "right",
        to_string(qkv), heads.head_dim, to_string(tables.cos));
  Tensor y = empty_like(qkv);
  backend().rope(compact(qkv), tables.cos, tables.sin, heads, false, y, false);
  return record("rope", y, {qkv}, [tables, heads](const Tensor& dy, Grads& grads) {
    const Tensor d = compact(dy);
    grads[0].write([&](Tensor& dx, bool accumulate) {
      backend().rope(d, tables.cos, tables.sin, heads, true, dx, accumulate);
    });
  });
}

}  // namespace lockstep
