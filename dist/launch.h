// How this process was started, and what around it changes results or speed: foreign launchers,
// cores, environment variables. Nothing here prints; the log header and the start-up comparison use
// it. Read next: links.h.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace lockstep {

std::string host_name();
// "rank 2" as the launcher said, before MPI can; "the rank" without one.
std::string launched_rank();
// Equal for two processes exactly when they can map each other's memory: kernel boot and PID
// namespace.
std::string host_identity();

// Config error if the environment announces several ranks but MPI (or, without MPI, this process)
// sees a world of one: then N copies would each believe to be alone and write to one run folder.
void check_launch(int world_size);

struct Cores {
  int usable = 1;   // this process may run on
  int present = 1;  // online on this host
};
Cores cores();
// What to do about unused cores, for the log: empty when there is nothing to do.
std::string cores_advice(const Cores& cores, int ranks_on_host, int threads_per_rank);

// Variables set in the environment that change results or speed (OMP_*, DNNL_*, NCCL_*, ...),
// sorted. Those that a launcher sets differently for every rank are left out, so ranks can be
// compared.
std::vector<std::pair<std::string, std::string>> relevant_environment();

}  // namespace lockstep
