// Metrics: what one step of training did and cost, and the file that keeps it, one JSON object per
// line. Where the figures come from is told by who fills them in (step_account.cpp,
// trainer_report.cpp). Read next: run_log.h, for what people read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep {

struct StepMetrics {
  int64_t step = 0;     // counted from 1
  int64_t attempt = 0;  // counted from 1: starts of the run that made a step
  double loss = 0;      // mean per token of the step's global batch
  std::optional<double> val_loss;
  double lr = 0;
  double grad_norm = 0;                        // before clipping; of momenta once they are sent
  int64_t tokens = 0;                          // predicted in this step, all ranks
  double samples_per_s = 0, tokens_per_s = 0;  // all ranks
  double step_ms = 0;                          // wall clock, as are all times, on rank 0
  double compute_ms = 0;
  double comm_ms = 0;          // exchanging, from the moment the last contribution is there
  double exposed_comm_ms = 0;  // the part of comm_ms during which nothing was computed
  double wait_ms = 0;          // for the slowest rank
  double data_ms = 0;          // for the next batch
  int64_t slowest_rank = 0;    // the last one to have its gradients complete, and
  double imbalance = 1;        // how many times as long that took it as the others
  int64_t wire_bytes = 0;      // shown by this rank to other ranks
  int64_t param_bytes = 0;     // of these, gathered parameters
  int64_t host_bytes = 0;      // of wire_bytes, sent to other hosts; the rest is read in place
  double compression = 1;      // fp32 bytes of the compressed gradients over those of their codec
  std::optional<double> mfu;   // share of the peak; only where a peak is known
  int64_t peak_bytes = 0;      // allocator's peak
  int64_t allocations = 0;     // from the system, in this step
  int64_t skipped = 0;         // steps in a row up to this one that changed no weight

  // Every field with its name in the file.
  template <class V>
  void visit(V& v) const {
    v("step", step);
    v("attempt", attempt);
    v("loss", loss);
    v("val_loss", val_loss);
    v("lr", lr);
    v("grad_norm", grad_norm);
    v("tokens", tokens);
    v("samples_per_s", samples_per_s);
    v("tokens_per_s", tokens_per_s);
    v("step_ms", step_ms);
    v("compute_ms", compute_ms);
    v("comm_ms", comm_ms);
    v("exposed_comm_ms", exposed_comm_ms);
    v("wait_ms", wait_ms);
    v("data_ms", data_ms);
    v("slowest_rank", slowest_rank);
    v("imbalance", imbalance);
    v("wire_bytes", wire_bytes);
    v("param_bytes", param_bytes);
    v("host_bytes", host_bytes);
    v("compression", compression);
    v("mfu", mfu);
    v("peak_bytes", peak_bytes);
    v("allocations", allocations);
    v("skipped", skipped);
  }
};

// One line of the file, without its end. Numbers that are not finite become null; fields without a
// value are left out.
std::string to_json(const StepMetrics& metrics);

// Appends. A resumed run writes some steps again: of equal steps the largest attempt counts.
class MetricsFile {
 public:
  // Repairs what a killed run left at the end of the file, so that every line parses: a missing
  // line end is added, half a line is cut off. Exit::data if the last line is no metrics.
  explicit MetricsFile(const std::string& path);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  int64_t attempt() const { return attempt_; }  // 1 + the last one in the file

  // One line, handed to the system at once. Errors as for OutputFile.
  void append(StepMetrics metrics);  // `attempt` is filled in

 private:
  std::string path_;
  int descriptor_ = -1;
  int64_t attempt_ = 1;
};

}  // namespace lockstep
