// Where a run starts: from the beginning or from which checkpoint, by checkpoint.resume and by what
// its folder holds; and that the folder is not another run's. For rank 0, which owns the folder. It
// reads and decides; it moves nothing. Read next: saved_run.h.
#pragma once

#include <functional>
#include <string>

#include "examples/run_folder.h"

namespace lockstep {

struct StartPoint {
  std::string checkpoint;  // a path; empty: from the beginning
  bool abandons = false;   // what the folder holds of later steps is not gone on with
  std::string note;        // for the log, if it is not where `resume` points
};

// `resume` is checkpoint.resume. A path is where the first attempt starts: a job that runs the same
// command again goes on from what it has saved since then, which is known by the setting that every
// checkpoint keeps. `warn` is told which checkpoints were passed over. Exit::data.
StartPoint find_start(const RunFolder& folder, const std::string& resume,
                      const std::function<void(const std::string&)>& warn);

// For a folder that has metrics already. Exit::config if its config.json is that of another run:
// these steps would be mixed with those.
void check_same_run(const RunFolder& folder, const std::string& config);

}  // namespace lockstep
