// Worlds of ranks for tests: the same body runs among threads (run plainly, in worlds of many
// shapes) and among processes (the same program started by mpirun with --mpi: one world per
// launch). Link worlds.cpp instead of a main(). Read next: communicator_test.cpp.
#pragma once

#include <functional>
#include <vector>

#include "dist/communicator.h"

namespace lockstep {

// Of threads: all on one host (0), each on a host of its own (1), two per host (2), where they are
// more than two.
struct LocalWorlds {
  std::vector<int> ranks = {1, 2, 3, 4, 5};
  std::vector<int> ranks_per_host = {0, 1, 2};
};

// Calls `body` once per rank of every world; among processes, of the one world there is. Ranks
// share the machine's cores, so each computes with one thread.
void on_worlds(const std::function<void(Communicator&)>& body, const LocalWorlds& worlds = {});

// Where ranks run their bodies: here, or on devices (tests/cuda_on_cpu/worlds_on_devices.cpp says
// so before main), where worlds have few ranks, on one host or in pairs.
struct RankPlace {
  std::function<void(Communicator& host, const std::function<void(Communicator&)>& body)> run;
  int most_ranks = 4;
};
RankPlace& rank_place();  // run is null: here
inline bool on_devices() {
  return rank_place().run != nullptr;
}

// Sleeps up to 0.3 ms, so that ranks arrive in changing orders.
void dawdle(Communicator& c, int generation);

// x[begin, end) summed as the balanced tree that README.md of dist/ promises, one scalar at a time.
float scalar_tree(const std::vector<float>& x, size_t begin, size_t end);

}  // namespace lockstep
