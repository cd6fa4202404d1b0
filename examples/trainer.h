// Trainer: the loop around Replica::step(): start-up checks, resume, evaluation, checkpoints,
// signals, logs. One Trainer per rank; rank 0 owns the run folder. Read next: trainer.cpp.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "examples/metrics.h"
#include "examples/replica.h"
#include "examples/run_folder.h"
#include "examples/run_log.h"
#include "examples/saved_run.h"

namespace lockstep {

// 0: never.
inline bool is_due(int64_t every, int64_t t) {
  return every > 0 && t % every == 0;
}

class Trainer {
 public:
  // Collective. Rank 0 opens the run folder and takes its lock.
  Trainer(const Config& config, Communicator& communicator);

  // Trains up to train.steps and returns Exit::ok; or up to a signal, saves, and returns
  // Exit::restart.
  Exit run();

 private:
  Exit train();
  void write_header();
  void write_distribution();
  void measure_links();
  void measure_peak();
  int64_t resume();
  void take_over_folder(bool abandons, int64_t step);
  void load_state(const std::string& checkpoint);
  void load_weights(const std::string& path);
  void occasional_work(StepMetrics& metrics, bool last);
  void stop_if_diverged(int64_t t) const;
  void report(const StepMetrics& metrics, bool last);
  void warn_of(const StepMetrics& metrics);
  void print_sample(int64_t t);
  bool should_save(int64_t t, bool last);
  void save(int64_t t);
  int agree_on_signal();
  SavedRun describe(int64_t t) const;

  Config config_;
  Communicator& communicator_;
  const bool first_;  // rank 0, which owns the next three
  std::optional<RunFolder> folder_;
  std::unique_ptr<RunLog> log_;
  std::optional<MetricsFile> metrics_;
  std::optional<RunMember> member_;          // on the other ranks
  std::unique_ptr<Tokenizer> tokenizer_;     // null: ids have no text
  std::vector<std::string> foreign_shards_;  // folders that do not tell who made their ids
  Replica replica_;
  RankTimes rank_times_;    // since they were looked at
  double peak_gflops_ = 0;  // this rank's GEMMs in the run's precision, measured at start
  bool mfu_doubted_ = false;
  bool save_is_due_ = false;
  int64_t saved_ = 0;  // step of the newest checkpoint
};

// Starts the ranks that config.dist asks for and trains; returns the process's exit code.
Exit train(const Config& config);

}  // namespace lockstep
