// The door to NCCL, a module of its own like core/cuda's. Read next: nccl_transport.cpp.
#pragma once

#include <memory>

#include "dist/device_transport.h"
#include "dist/transport.h"

namespace lockstep {

// Who sums what the ranks exchange: our kernels, in the order of the ranks, or NCCL, in its own.
enum class NcclReduce { own, native };

// Collective over the ranks of `host`, each of which has a GPU of its own. `lane` is CUDA's, and
// outlives it. Exit::config if this build has no NCCL; Exit::restart if a rank does not come within
// the limit for starting.
std::unique_ptr<DeviceTransport> open_nccl(Communicator& host, Lane& lane,
                                           const TransportOptions& options, NcclReduce reduce);

}  // namespace lockstep
