// Reductions over chosen dimensions, and the change of element type. Read next: reduce.cpp.
#pragma once

#include <vector>

#include "core/tensor.h"

namespace lockstep {

// Over `dims` (negative ones count from the end; none means all). With keepdim the reduced
// dimensions stay, with size 1; without, a full reduction has shape []. Sums are formed in fp32.
Tensor sum(const Tensor& x, const std::vector<int>& dims = {}, bool keepdim = false);
Tensor mean(const Tensor& x, const std::vector<int>& dims = {}, bool keepdim = false);
// Where several elements are maximal, each gets an equal share of the gradient.
Tensor max(const Tensor& x, const std::vector<int>& dims = {}, bool keepdim = false);

// x in another floating type (fp32, bf16); x itself if it has it already.
Tensor cast(const Tensor& x, DType dtype);

}  // namespace lockstep
