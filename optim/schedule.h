// The learning rate of a step, and the clip factor of a gradient norm: pure functions.
// Read next: clip in schedule.cpp.
#pragma once

#include <cstdint>
#include <span>

#include "optim/config.h"

namespace lockstep {

// By how much the learning rate changes when a step holds `batch_tokens` tokens although lr was
// tuned for config.base_batch_tokens: none 1; linear b/b0 (Goyal et al. 2017, for SGD); sqrt
// (b/b0)^1/2 (for Adam: Malladi et al. 2022).
double lr_scale(const OptimConfig& config, int64_t batch_tokens);

// Learning rate of step t in 1..steps: linear warm-up to lr * lr_scale over warmup_steps, then the
// schedule down to min_lr_ratio of it at the last step. wsd stays up and falls in the last
// wsd_decay_share of the steps (Hu et al. 2024).
double learning_rate(const OptimConfig& config, int64_t t, int64_t steps, int64_t batch_tokens);

// Sum of doubles as a balanced binary tree: the result depends on the values and their order alone.
double tree_sum(std::span<const double> values);

// Factor for every gradient so that the global norm is at most `limit` (0: no limit): PyTorch's
// min(1, limit / (norm + 1e-6)).
float clip_factor(double norm, double limit);

}  // namespace lockstep
