// Schedules. Read next: ../dist/README.md.
#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace lockstep {

double lr_scale(const OptimConfig& config, int64_t batch_tokens) {
  if (config.lr_scaling == "none") return 1.0;
  const double ratio =
      static_cast<double>(batch_tokens) / static_cast<double>(config.base_batch_tokens);
  return config.lr_scaling == "linear" ? ratio : std::sqrt(ratio);
}

namespace {
// From 1 at progress 0 to min_ratio at progress 1.
double decay(const OptimConfig& config, double progress) {
  const double low = config.min_lr_ratio;
  if (config.schedule == "constant") return 1.0;
  if (config.schedule == "linear") return 1.0 - (1.0 - low) * progress;
  if (config.schedule == "cosine")
    return low + (1.0 - low) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  const double start = 1.0 - config.wsd_decay_share;
  return progress <= start ? 1.0 : 1.0 - (1.0 - low) * (progress - start) / config.wsd_decay_share;
}
}  // namespace

double learning_rate(const OptimConfig& config, int64_t t, int64_t steps, int64_t batch_tokens) {
  const double peak = config.lr * lr_scale(config, batch_tokens);
  const int64_t warmup = config.warmup_steps;
  if (t <= warmup) return peak * static_cast<double>(t) / static_cast<double>(warmup);
  const double progress =
      static_cast<double>(t - warmup) / static_cast<double>(std::max<int64_t>(steps - warmup, 1));
  return peak * decay(config, std::min(progress, 1.0));
}

double tree_sum(std::span<const double> values) {
  if (values.empty()) return 0.0;
  if (values.size() == 1) return values[0];
  // The left part is the largest power of two below the size, so a prefix keeps its shape as values
  // are appended.
  size_t half = 1;
  while (half * 2 < values.size()) half *= 2;
  return tree_sum(values.first(half)) + tree_sum(values.subspan(half));
}

float clip_factor(double norm, double limit) {
  return limit <= 0 ? 1.0f : static_cast<float>(std::min(1.0, limit / (norm + 1e-6)));
}

}  // namespace lockstep
