// Ranks that are threads of this process: the whole of data parallelism in one debugger, and what
// the race detector can see. Same Communicator, same bits as processes; only the start differs.
// Read next: mpi.h.
#pragma once

#include <functional>

#include "dist/transport.h"

namespace lockstep {

// Calls `body` once per rank, each in a thread of its own, and returns when all have returned. If
// one throws, the others' operations end, and the first error is thrown again with its rank in
// front.
void run_local(int ranks, const TransportOptions& options,
               const std::function<void(Communicator&)>& body);

}  // namespace lockstep
