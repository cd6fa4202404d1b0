// Runs a test's body in every kind of world: threads (started plainly: 1 to `most` ranks, all on
// one host, each on a host of its own, two per host) or processes (started by mpirun with --mpi:
// one world per launch). Assertions in the body count for the test, whichever rank they fail on.
#pragma once

#include <functional>

#include "dist/communicator.h"

namespace lockstep {

void on_worlds(const std::function<void(Communicator&)>& body, int most = 5);

}  // namespace lockstep
