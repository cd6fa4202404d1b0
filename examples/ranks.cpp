// Cores and threads of a rank. Read next: trainer.cpp.
#include "examples/ranks.h"

#include <sched.h>

#include <algorithm>

#include "core/allocator.h"
#include "core/parallel.h"
#include "dist/launch.h"
#include "dist/local.h"
#include "dist/mpi.h"
#include "examples/validate.h"

namespace lockstep {

namespace {

// This rank's share of the cores it may run on: ranks of one host that have the same set divide it.
int share_of_cores(Communicator& communicator) {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  sched_getaffinity(0, sizeof mine, &mine);
  const auto sets = communicator.all_gather_bytes(std::as_bytes(std::span(&mine, 1)));
  const Topology& where = communicator.topology();
  int sharing = 0;
  for (int r = 0; r < communicator.size(); ++r)
    sharing += where.same_host(r) && sets[r] == sets[communicator.rank()];
  return std::max(1, cores().usable / sharing);
}

}  // namespace

void run_ranks(const Config& config, const std::function<void(Communicator&)>& body) {
  const auto as_rank = [&](Communicator& communicator) {
    check_launch(communicator.size());
    validate(config, communicator.size());
    const int share = share_of_cores(communicator);
    set_num_threads(config.train.threads > 0 ? static_cast<int>(config.train.threads) : share);
    Allocator allocator(host_memory());
    AllocatorScope scope(allocator);
    body(communicator);
  };
  const TransportOptions options{.timeout_s = config.dist.timeout_s};
  if (config.dist.backend == "local")
    run_local(config.dist.local_ranks, options, as_rank);
  else
    run_mpi(options, as_rank);
}

}  // namespace lockstep
