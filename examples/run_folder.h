// A run's folder: where its files lie, and the lock that gives them one writer.
//   config.json  log.txt  metrics.jsonl  checkpoints/step-00000100/  lock
// Read next: run_log.h, metrics.h, checkpoint.h for what is in them.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

// Where the checkpoints of a run lie.
inline std::string checkpoints_of(const std::string& run_dir) {
  return run_dir + "/checkpoints";
}

class RunFolder {
 public:
  // Creates the folder where it is missing and locks it for as long as this object lives; one per
  // run, on rank 0. A crash leaves no lock behind. If another process holds it, or any rank of an
  // earlier run is still there: Exit::restart (it may be the rest of a run that is just ending),
  // naming the process that was rank 0 and its host.
  explicit RunFolder(const std::string& path);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string config_path() const { return path_ + "/config.json"; }
  std::string log_path() const { return path_ + "/log.txt"; }
  std::string metrics_path() const { return path_ + "/metrics.jsonl"; }
  std::string checkpoints() const { return checkpoints_of(path_); }
  std::string checkpoint_path(int64_t step) const;

  void write_config(const std::string& json) const;  // replaces the file as a whole

 private:
  std::string path_;
  int lock_ = -1;
};

// The share of another rank in the lock, once rank 0 has it: while this object lives, no new run
// gets the folder.
class RunMember {
 public:
  RunMember(const std::string& run, int rank);
  ~RunMember();
  RunMember(const RunMember&) = delete;
  RunMember& operator=(const RunMember&) = delete;

 private:
  int lock_;
};

}  // namespace lockstep
