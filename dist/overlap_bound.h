// How long a step takes at best when its transfers hide behind its computing, and what cannot be
// hidden. Arithmetic on a trace; it measures nothing. Read next: overlap_bound.cpp.
#pragma once

#include <vector>

#include "dist/communicator.h"
#include "dist/step_trace.h"

namespace lockstep {

// The model: a link carries one transfer at a time, in the order in which they got ready, at
// `bytes_per_ms`. So each begins when it is ready and the one before it has ended. The program goes
// on while they travel and stops where it needs one that has not ended: the update needs all
// gradients, a window the bucket that was in it before, a layer its gathered parameters.
//
// Left out, so that it is a bound: latency, the time to sum and decode what arrived, the processor
// time that communication takes from computing, and waiting for a slower rank within the step. Not
// a bound on what other buckets, another stage or another codec would reach: they have traces of
// their own.
struct OverlapBound {
  struct Transfer {
    double ready_ms, begin_ms, end_ms;  // from the step's start
    double exposed_ms;                  // for which the program stopped
  };
  std::vector<Transfer> transfers;  // those of the trace
  double step_ms = 0;               // the bound: computing and all that is exposed
  double exposed_ms = 0;
};

OverlapBound overlap_bound(const StepTrace& trace, double bytes_per_ms);

// The same step if things were otherwise. Gradients of bucket b put ratio[b] times as much on the
// link:
StepTrace with_gradients_scaled(StepTrace trace, const std::vector<double>& ratio);
// all that is computed takes `factor` times as long:
StepTrace with_computing_scaled(StepTrace trace, double factor);
// Until the last bucket of gradients is ready: forward and backward.
double backward_end_ms(const StepTrace& trace);

// The middle of several steps, value by value. Steps that sent other things than the last one are
// left out, as the first may have.
StepTrace median_trace(const std::vector<StepTrace>& steps);

// Of the ranks' traces one: what the slowest needs for each moment, and what a host sends together
// through its link. On one host that is what all ranks move. Collective.
StepTrace merge_traces(Communicator& communicator, const StepTrace& mine);

}  // namespace lockstep
