// A job for mpi_failures_test: rank 1 misbehaves in the way the argument says, as trainer's main
// would see it: the message on stderr, the exit code of the error. Further arguments: the limit of
// a step in seconds, and ranks per pretended host.
#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "dist/mpi.h"

namespace lockstep {
namespace {

void misbehave(Communicator& c, const std::string& how) {
  const auto window = c.window("bucket 0", even_parts(1000, sizeof(float), c.size()));
  c.barrier();
  c.enter({Phase::step, 12});
  if (how == "memory") {
    // Stands for a host without memory: shared memory is a file too, and this limit bounds it.
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 20, 1 << 20};
    if (c.rank() == 1) setrlimit(RLIMIT_FSIZE, &limit);
    c.window("bucket 1", std::vector<size_t>(c.size(), 1 << 21));
  }
  if (c.rank() == 1) {
    if (how == "throw") fail(Exit::data, "[data] shard 7 is truncated");
    if (how == "hang") std::this_thread::sleep_for(std::chrono::hours(1));
    if (how == "stop") std::raise(SIGSTOP);
    if (how == "kill") std::raise(SIGKILL);
  }
  all_reduce_floats(c, window).wait();
  c.barrier();
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  const std::string how = argv[1];
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (how == "absent" && rank && *rank == '1') std::raise(SIGSTOP);
  lockstep::TransportOptions options{.timeout_s = 0.5, .start_timeout_s = 20};
  if (how == "absent") options.start_timeout_s = 3;
  if (argc > 2) options.timeout_s = std::atof(argv[2]);
  if (argc > 3) options.ranks_per_host = std::atoi(argv[3]);
  try {
    lockstep::run_mpi(options, [&](auto& c) { lockstep::misbehave(c, how); });
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // the others may speak as well
    return static_cast<int>(error.code());
  }
  return 0;
}
