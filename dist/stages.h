// What each ZeRO stage splits among the ranks, and which settings follow from a config. Read next:
// data_parallel.cpp, which goes by them, then comm_times.h.
#pragma once

#include <array>

#include "dist/reducer.h"

namespace lockstep {

struct Stage {
  Residence residence;
  bool shards_optimizer;
  bool keeps_gradients;  // whole, from backward to the update
};
constexpr std::array<Stage, 4> zero_stages{{{Residence::replicated, false, true},
                                            {Residence::gathered, true, true},
                                            {Residence::gathered, true, false},
                                            {Residence::sharded, true, false}}};

ReducerOptions reducer_options(const DistConfig& config, SumOrder order, double momentum = 0);

}  // namespace lockstep
