// Which rank the others wait for. Every step each rank tells how long it took until its gradients
// were complete, so that a slow host, a neighbour on its cores or a slow disk has a name. Read
// next: step_account.cpp, which measures; trainer_report.cpp, which warns.
#pragma once

#include <set>
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

// Over steps: the middle, and who is slow so steadily that it is worth a word.
class RankTimes {
 public:
  void add(std::span<const RankTime> by_rank);
  std::vector<RankTime> medians() const;  // by rank

  // Which rank keeps the others waiting, by how much and with what. Of the steps since it last had
  // enough of them, 20, to judge; then it forgets them. Empty unless the same rank was the last in
  // nine of ten and is slower than the others by more than a tenth. Once per rank.
  std::string warning(const Topology& where);

 private:
  std::vector<std::vector<RankTime>> steps_;
  std::set<int> named_;
};

}  // namespace lockstep
