// Which rank the others wait for. Every step each rank tells how long it took until its gradients
// were complete, so that a slow host, a neighbour on its cores or a slow disk has a name. Read
// next: replica.cpp, which measures; trainer.cpp, which warns.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dist/communicator.h"

namespace lockstep {

// Of one rank in one step, until its own gradients were complete; waiting for other ranks left out.
struct RankTime {
  double compute_ms = 0;
  double data_ms = 0;  // waiting for batches

  double ms() const { return compute_ms + data_ms; }
};

struct SlowestRank {
  int rank = 0;
  double imbalance = 1;  // its time over the mean of the others'; 1 for a rank alone
};
SlowestRank slowest_rank(std::span<const RankTime> by_rank);

// The mean over steps, and when it is worth a word.
class RankTimes {
 public:
  void add(std::span<const RankTime> by_rank);
  std::vector<RankTime> means() const;  // by rank

  // Of the steps since the last call: which rank keeps the others waiting, by how much and with
  // what. Empty if none is slower than the others by more than a tenth, if that was said of this
  // rank before, or if there were fewer than 5 steps, as single ones prove nothing; then they count
  // on.
  std::string warning(const Topology& where);

 private:
  std::vector<RankTime> sums_;  // by rank
  int64_t steps_ = 0;
  int named_ = -1;  // the rank of the last warning
};

}  // namespace lockstep
