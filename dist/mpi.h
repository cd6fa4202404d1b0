// Ranks that are processes started by mpirun. Within a host they share memory; MPI carries what
// goes between hosts and starts everything. One thread makes every MPI call from MPI_Init to
// MPI_Finalize and sleeps between polls, because Open MPI's own waiting burns the core that should
// compute. Read next: futex.h.
#pragma once

#include <functional>

#include "dist/transport.h"

namespace lockstep {

// Calls `body` with this process's rank, once per process life. If it throws, the error goes on to
// the caller and MPI is not finalised: leave with the error's exit code, and mpirun ends the other
// ranks.
void run_mpi(const TransportOptions& options, const std::function<void(Communicator&)>& body);

}  // namespace lockstep
