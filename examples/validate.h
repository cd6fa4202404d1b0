// The rules that cross sections of a run config, and those that need the number of ranks. Single
// values are checked when they are read (config_io.h), files when they are opened.
// Read next: validate.cpp.
#pragma once

#include "examples/config.h"

namespace lockstep {

// Exit::config with what would be right. `ranks` is the number of ranks of the whole run.
void validate(const Config& config, int ranks);

// Micro-batches per rank and step. Exit::config if train.global_batch is not a multiple of
// micro_batch x ranks.
int64_t accumulation(const Config& config, int ranks);

}  // namespace lockstep
