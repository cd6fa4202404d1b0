// Cores and threads of a rank. Read next: trainer.h.
#include "examples/ranks.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>

#include "core/allocator.h"
#include "core/backend.h"
#include "core/cuda/open.h"
#include "core/parallel.h"
#include "dist/launch.h"
#include "dist/local.h"
#include "dist/mpi.h"
#include "dist/verify.h"
#include "examples/build_info.h"
#include "examples/config_io.h"
#include "examples/rank_device.h"
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

// Ranks that differ would exchange nonsense, so this comes before they build anything together.
void check_same_program(Communicator& communicator, const Config& config) {
  std::string environment;
  for (const auto& [name, value] : relevant_environment())
    environment += fmt::format("{}={}\n", name, value);
  check_same(communicator, "config", print_config(config));
  check_same(communicator, "build", build_info());
  check_same(communicator, "environment", environment);
}

// Each of the launcher's processes would be a whole run of its own.
void refuse_launcher_of_local_ranks() {
  const char* size = std::getenv("OMPI_COMM_WORLD_SIZE");
  if (size && std::atoi(size) > 1)
    fail(Exit::config,
         "[dist.backend] local, but mpirun started {} processes, each of which would train alone; "
         "start it without mpirun, or use dist.backend mpi",
         size);
  check_launch(1);
}

}  // namespace

void run_ranks(const Config& config, const std::function<void(Communicator&)>& body) {
  if (config.train.device == "cuda") cuda_uuids();  // one error is enough if there is none
  const bool local = config.dist.backend == "local";
  if (local) {
    refuse_launcher_of_local_ranks();
    validate(config, config.dist.local_ranks);
  }
  const TransportOptions options{.timeout_s = config.dist.timeout_s,
                                 .start_timeout_s = config.dist.start_timeout_s,
                                 .checkpoint_timeout_s = config.dist.checkpoint_timeout_s,
                                 .eval_timeout_s = config.dist.eval_timeout_s};
  const auto as_rank = [&](Communicator& communicator) {
    communicator.enter({Phase::start, 0});
    if (!local) validate(config, communicator.size());
    check_same_program(communicator, config);
    const int share = share_of_cores(communicator);
    set_num_threads(config.train.threads > 0 ? static_cast<int>(config.train.threads) : share);
    const RankDevice device(config, communicator, options);
    Allocator allocator(device.memory());
    const AllocatorScope memory(allocator);
    const BackendScope kernels(device.backend());
    const RecorderScope recordings(device.recorder());
    body(device.communicator());
  };
  if (local)
    run_local(config.dist.local_ranks, options, as_rank);
  else
    run_mpi(options, as_rank);
}

}  // namespace lockstep
