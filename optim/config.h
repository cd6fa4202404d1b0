// OptimConfig: the run config's section "optim". Read next: optimizer.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config_field.h"

namespace lockstep {

struct OptimConfig {
  std::string name = "adamw";
  double lr = 3e-4;
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1e-8;
  double momentum = 0.9;
  double weight_decay = 0.1;
  std::string schedule = "cosine";
  int64_t warmup_steps = 0;
  double min_lr_ratio = 0.1;
  double wsd_decay_share = 0.2;
  double grad_clip = 1.0;
  std::string lr_scaling = "none";
  int64_t base_batch_tokens = 0;

  template <class V>
  void visit(V& v) {
    v("name", name,
      "adamw; sgd with momentum; onebit_adam, for lossy codecs: AdamW whose second moment stays as "
      "it is after dist.compression.warmup_steps, when ranks begin to send momenta",
      Choices{"adamw", "sgd", "onebit_adam"});
    v("lr", lr, "peak learning rate", Range{0, 1e3});
    v("betas", betas, "AdamW's two decay rates", Range{0, 0.999999999});
    v("eps", eps, "AdamW's epsilon", Range{0, 1});
    v("momentum", momentum, "SGD's momentum", Range{0, 0.999999999});
    v("weight_decay", weight_decay, "decoupled decay, on matrices only", Range{0, 1e3});
    v("schedule", schedule, "learning rate after warm-up",
      Choices{"cosine", "linear", "constant", "wsd"});
    v("warmup_steps", warmup_steps, "steps of linear warm-up", Range{0, 1e12});
    v("min_lr_ratio", min_lr_ratio, "learning rate at the last step, as a share of the peak",
      Range{0, 1});
    v("wsd_decay_share", wsd_decay_share, "share of the steps, at the end, in which wsd falls",
      Range{1e-6, 1});
    v("grad_clip", grad_clip,
      "largest global gradient norm; 0: no clipping. onebit_adam clips until its second moment is "
      "frozen",
      Range{0, 1e9});
    v("lr_scaling", lr_scaling,
      "how lr follows the global batch: with four times base_batch_tokens linear gives 4x, sqrt 2x",
      Choices{"none", "linear", "sqrt"});
    v("base_batch_tokens", base_batch_tokens,
      "tokens per step that lr was tuned for; needed by lr_scaling", Range{0, 1e15});
  }
};

}  // namespace lockstep
