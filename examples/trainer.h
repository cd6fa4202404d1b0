// Trainer: the loop around Replica::step(): start-up checks, resume, evaluation, checkpoints, signals,
// logs. One Trainer per rank; rank 0 owns the run folder. Read next: trainer.cpp.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "examples/metrics.h"
#include "examples/replica.h"
#include "examples/run_folder.h"
#include "examples/run_log.h"

namespace lockstep {

class Trainer {
 public:
  // Collective. Rank 0 opens the run folder and takes its lock.
  Trainer(const Config& config, Communicator& communicator);

  // Trains up to train.steps: Exit::ok; or until a signal, with a checkpoint of the last whole step:
  // Exit::restart.
  Exit run();

 private:
  void write_header();
  int64_t resume();
  void after_step(StepMetrics& metrics);
  void finish(StepMetrics& metrics);
  void report(const StepMetrics& metrics);
  void stop_if_diverged(int64_t t);
  void evaluate(StepMetrics& metrics);
  void print_sample(int64_t t);
  void save(int64_t t);
  int agreed_signal();
  bool is_due(int64_t every, int64_t t) const { return every > 0 && t % every == 0; }

  Config config_;
  Communicator& communicator_;
  std::optional<RunFolder> folder_;        // rank 0
  std::unique_ptr<RunLog> log_;            // rank 0 writes; the others' goes nowhere
  std::optional<MetricsWriter> metrics_;   // rank 0
  Replica replica_;
  double peak_gflops_;                     // of this rank's GEMMs, measured
  int64_t saved_ = 0;                      // step of the newest checkpoint of this attempt
};

// Starts the ranks that config.dist asks for and trains. Returns the process's exit code.
Exit train(const Config& config);

}  // namespace lockstep
