// Starting ranks: processes under mpirun or threads of this process, each with its share of the
// cores, a device and an allocator of its own. Read next: trainer.h.
#pragma once

#include <functional>

#include "dist/communicator.h"
#include "examples/config.h"

namespace lockstep {

// Runs `body` once per rank of config.dist and returns when all have returned. Before that, on
// every rank: foreign launchers are refused, the config is validated against the number of ranks,
// ranks with another config, build or environment are refused, and threads are set. Errors of any
// rank end all.
void run_ranks(const Config& config, const std::function<void(Communicator&)>& body);

}  // namespace lockstep
