// What `trainer bench step` tells about overlap: how long computing and communicating take alone,
// what a step can take at best (dist/overlap_bound.h), and how near the measured one comes. Read
// next: bench_overlap.cpp.
#pragma once

#include <string>
#include <vector>

#include "dist/overlap_bound.h"

namespace lockstep {

struct OverlapReport {
  StepTrace trace;   // of all ranks, a step in which nothing was computed while something travelled
  double bytes = 0;  // that it sent through the link of a host
  double bytes_per_ms = 0;     // of the link
  bool measured = false;       // by that step; else it was given
  bool several_hosts = false;  // else "the link" is the memory through which all ranks exchange
  OverlapBound bound;
};

// From steps with set_overlap(false). link_mbit: of a host's link, 0: as it was in those steps.
// Collective.
OverlapReport report_overlap(Communicator& communicator, const std::vector<StepTrace>& apart,
                             double link_mbit);

// Beside step_ms, what a step with overlap took.
void print_overlap(const OverlapReport& report, double step_ms);
std::string to_json(const OverlapReport& report, double step_ms);

}  // namespace lockstep
