// Which samples a rank trains on in a step: arithmetic only.
// Global batch = micro batch x ranks x accumulation. The samples of step t are [t-1, t) x global batch,
// whatever the number of ranks; rank r takes accumulation consecutive micro batches of them.
// Read next: trainer.h.
#pragma once

#include <cstdint>

namespace lockstep {

struct BatchPlan {
  int64_t micro_batch = 1;   // samples per forward pass
  int64_t accumulation = 1;  // micro batches per rank and step
  int64_t ranks = 1;
  int64_t rank = 0;

  int64_t global_batch() const { return micro_batch * accumulation * ranks; }

  // Global index of the first sample of this rank's n-th micro batch of the whole run.
  int64_t first_sample(int64_t n) const {
    const int64_t step = n / accumulation, micro = n % accumulation;
    return step * global_batch() + (rank * accumulation + micro) * micro_batch;
  }
};

}  // namespace lockstep
