// Initial values of parameters. Read next: init.cpp.
#pragma once

#include <string_view>

#include "core/tensor.h"

namespace lockstep {

// Fills contiguous t (fp32 or bf16) from the normal distribution of mean 0. Element i
// is a function of (seed, name, i) only: not of shape, rank, threads or the order of calls.
void normal_(Tensor& t, uint64_t seed, std::string_view name, double std);

}  // namespace lockstep
