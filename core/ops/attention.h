// Causal self-attention. Read next: attention.cpp.
#pragma once

#include "core/backend.h"
#include "core/tensor.h"

namespace lockstep {

// qkv [b, t, heads.packed()] -> [b, t, n_head * head_dim]. Scores are scaled by 1 / sqrt(head_dim);
// position i sees 0..i. Each key head serves n_head / n_kv_head query heads in a row. The t x t
// scores are never stored (Dao et al. 2022).
Tensor causal_attention(const Tensor& qkv, const Heads& heads);

}  // namespace lockstep
