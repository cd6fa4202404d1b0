// Rotary position embedding (Su et al. 2021). Read next: rope.cpp.
#pragma once

#include "core/backend.h"
#include "core/tensor.h"

namespace lockstep {

// cos and sin of position p times frequency theta^(-2 i / head_dim), [max_len, head_dim / 2] fp32.
struct RopeTables {
  Tensor cos, sin;
};
RopeTables rope_tables(int64_t max_len, int64_t head_dim, double theta);

// Rotates the queries and keys of packed qkv [b, t, heads.packed()] by their position in t (pairs
// (i, i + head_dim / 2), as Llama's published weights expect) and copies the values.
Tensor rope(const Tensor& qkv, const RopeTables& tables, const Heads& heads);

}  // namespace lockstep
