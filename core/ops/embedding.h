// Table lookup. Read next: embedding.cpp.
#pragma once

#include <span>

#include "core/tensor.h"

namespace lockstep {

// table [v, d] at ids [..] i32 -> [.., d]. An id outside 0..v-1 is Exit::data, naming its position.
Tensor embedding(const Tensor& table, const Tensor& ids);

// Error (Exit::data) unless every id is in least..vocab-1; `op` names the caller. Ids on a device
// are not looked at: whoever sends them there checks them first, by the second form.
void check_ids(const char* op, const Tensor& ids, int64_t least, int64_t vocab);
void check_ids(const char* op, std::span<const int32_t> ids, const Shape& shape, int64_t least,
               int64_t vocab);

}  // namespace lockstep
