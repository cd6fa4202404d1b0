// A run's folder: where its files lie, and the lock that gives them one writer.
//   config.json  log.txt  metrics.jsonl  checkpoints/step-00000100/  lock
// Read next: run_log.h, metrics.h, checkpoint.h for what is in them.
#pragma once

#include <string>

namespace lockstep {

class RunFolder {
 public:
  // Creates the folder where it is missing and locks it for as long as this object lives; one per
  // run, on rank 0. A crash leaves no lock behind. If another process holds it: Exit::restart (it
  // may be the rest of a run that is just ending), naming that process and its host.
  explicit RunFolder(const std::string& path);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

 private:
  int lock_ = -1;
};

// The same on all ranks, without a lock.
struct RunPaths {
  explicit RunPaths(const std::string& run_dir)
      : config(run_dir + "/config.json"),
        log(run_dir + "/log.txt"),
        metrics(run_dir + "/metrics.jsonl"),
        checkpoints(run_dir + "/checkpoints") {}

  std::string config, log, metrics, checkpoints;
};

}  // namespace lockstep
