// Causal self-attention; for the gradient it keeps the result and one log-sum-exp per row, from
// which the kernel computes the scores again. Read next: dropout.cpp.
#include "core/ops/attention.h"

#include "core/ops/common.h"

namespace lockstep {

Tensor causal_attention(const Tensor& qkv, const Heads& heads) {
  check_float("attention", "qkv", qkv);
  check(heads.n_kv_head > 0 && heads.n_head % heads.n_kv_head == 0,
        "[attention] {} query heads over {} key heads; a multiple is right", heads.n_head,
        heads.n_kv_head);
  check(qkv.ndim() == 3 && qkv.dim(2) == heads.packed(),
        "[attention] qkv {}; [b, t, {}] is right for {} query and {} key heads of {}",
        to_string(qkv), heads.packed(), heads.n_head, heads.n_kv_head, heads.head_dim);
  const int64_t b = qkv.dim(0), t = qkv.dim(1);
  const Tensor in = compact(qkv.detach());
  Tensor o = Tensor::empty({b, t, heads.n_head * heads.head_dim}, qkv.dtype());
  Tensor lse = Tensor::empty({b, heads.n_head, t});
  backend().attention(in, heads, o, lse);
  return record("attention", o, {qkv}, [in, heads, o, lse](const Tensor& d_o, Grads& grads) {
    const Tensor d = compact(d_o);
    grads[0].write([&](Tensor& dqkv, bool accumulate) {
      backend().attention_grad(in, heads, o, lse, d, dqkv, accumulate);
    });
  });
}

}  // namespace lockstep
