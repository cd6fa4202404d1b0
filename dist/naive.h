// The naive form of data parallelism. Read next: naive.cpp.
#pragma once

#include "dist/data_parallel.h"

namespace lockstep {

// Nothing sharded, nothing compressed, nothing overlapped.
std::unique_ptr<DataParallel> make_naive(const DistConfig& config, Communicator& communicator,
                                         std::vector<NamedTensor> parameters);

}  // namespace lockstep
