// What would make a step shorter: the model of dist/overlap_bound.h asked again, with one thing
// changed at a time. Predictions; nothing is trained for them. Read next: bench_what_if.cpp.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "examples/bench_overlap.h"
#include "examples/config.h"
#include "examples/replica.h"

namespace lockstep {

struct WhatIf {
  std::string change;     // as one would type it, where it is a setting
  double step_ms = 0;     // the bound; with what a codec takes to encode
  double tokens = 0;      // per step
  double link_bytes = 0;  // per step, of the host that sends most

  double tokens_per_s() const { return 1e3 * tokens / step_ms; }
};

// The first one changes nothing. Collective, as codecs are timed.
std::vector<WhatIf> ask_what_if(Communicator& communicator, const Config& config, Replica& replica,
                                const OverlapReport& report, std::span<const RankTime> by_rank);

void print_what_if(const std::vector<WhatIf>& answers);
std::string to_json(const std::vector<WhatIf>& answers);

}  // namespace lockstep
