// The model that a run or a checkpoint holds, for the subcommands that only use it. Read next:
// saved_state.h.
#pragma once

#include <string>

#include "examples/checkpoint.h"
#include "examples/config.h"

namespace CLI {
class App;
}

namespace lockstep {

struct ModelSource {
  std::string run, checkpoint;  // one of them is empty
};

// The options --run and --checkpoint, of which one must be given.
void add_model_source(CLI::App& command, ModelSource& source);

struct SavedModel {
  Checkpoint checkpoint;
  Config config;          // of the run that saved it
  std::string tokenizer;  // its identity()
};

// The newest complete checkpoint of a run, or the one that is named, after all checksums were
// found right. What is passed over is told on stderr. Exit::data if there is none.
SavedModel find_model(const ModelSource& source);

}  // namespace lockstep
