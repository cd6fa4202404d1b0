// Replica: one rank's copy of the model with everything that trains it: data, gradient exchange,
// optimizer. It can do a step, evaluate, and be saved and restored; it decides nothing about when.
// Read next: replica.cpp, whose step() is the whole of data-parallel training.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/step_buffer.h"
#include "data/loader.h"
#include "data/tokenizer.h"
#include "dist/communicator.h"
#include "dist/data_parallel.h"
#include "dist/memory.h"
#include "examples/config.h"
#include "examples/metrics.h"
#include "examples/rank_times.h"
#include "examples/recorded_steps.h"
#include "nn/gpt.h"
#include "optim/optimizer.h"

namespace lockstep {

class Replica {
 public:
  // Collective: all ranks build theirs together. Weights are the seed's.
  Replica(const Config& config, Communicator& communicator);

  // Training step t, counted from 1. Collective. Fills in all metrics but `attempt`, `mfu` and
  // `val_loss`.
  StepMetrics step(int64_t t);

  // Of that step, by rank.
  const std::vector<RankTime>& rank_times() const { return rank_times_; }

  // Mean loss per token over the validation split, the same on all ranks. Collective.
  double evaluate();

  // That evaluate() will find what it needs: read once now, rather than trained for in vain.
  // Exit::data.
  void check_validation_data() const;

  // That `tokenizer` made the data's token ids; returns the folders of shards that do not tell.
  // Exit::config.
  std::vector<std::string> check_tokenizer(const Tokenizer& tokenizer) const;

  // Continues with step t + 1: the data position follows from t.
  void start_after(int64_t t, int64_t skipped_in_a_row);

  // state() was written from elsewhere.
  void state_changed();
  // Only the weights were: the optimizer starts anew from them.
  void weights_changed();

  // Compares weights across ranks. Collective; Exit::config naming the parameter that differs.
  void verify();

  // Everything that a checkpoint must hold beside the config and the step.
  std::vector<NamedTensor> state() const;
  // This rank's part of the weights; all of them with zero_stage 0.
  const std::vector<NamedTensor>& weights() const { return gradients_->shards(); }

  Gpt& model() { return model_; }
  DataParallel& gradients() { return *gradients_; }
  // By formula, for the rank with the most; of any stage, to compare.
  MemoryBytes memory_plan(int zero_stage) const;
  WireBytes wire_plan() const;
  // The share of the gradients' elements that this codec would encode.
  double compressed_by(const std::string& codec) const;
  // By formula, what each bucket's gradients put on a link with that codec.
  std::vector<double> bucket_link_bytes(const std::string& codec) const;

  int64_t tokens_per_step() const;
  int64_t skipped_in_a_row() const { return skipped_in_a_row_; }
  const std::string& non_finite() const { return non_finite_; }
  const std::vector<std::string>& unused_parameters() const { return gradients_->unused(); }
  std::string data_identity() const;
  const std::string& attention() const { return attention_; }  // who computes it, for the log
  MemoryStats memory() const;                                  // of this rank, recordings included

 private:
  SumOrder sum_order() const;
  double sent_momentum() const;
  Initialise initialise_later() const;
  void attach_units();
  MemoryModel memory_model() const;
  ValidationSampler validation_sampler() const;
  void plan(int64_t t);
  Tensor train_micro_batch(int64_t micro);
  void check_tokens(const Batch& batch) const;
  Tensor batch_loss(const Batch& batch, const ForwardContext& context);
  void clip_or_skip(const GradientReport& report, double loss);
  void update();
  void precondition();
  double tell_others(const std::vector<double>& losses, const RankTime& mine);
  StepMetrics metrics(double loss, const GradientReport& report, StepMetrics m) const;
  double sum_over_ranks(const std::vector<double>& by_micro_batch);
  Deal deal() const;

  Config config_;
  Communicator& communicator_;
  int64_t accumulation_;
  Gpt model_;
  std::vector<NamedTensor> parameters_;
  std::vector<size_t> unit_of_;  // by parameter
  std::unique_ptr<DataParallel> gradients_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Dataset> train_data_, val_data_;
  std::unique_ptr<Sampler> sampler_;
  std::unique_ptr<Loader> loader_;
  StepScalars scalars_;
  std::string attention_;
  StepBuffer kernel_scalars_;                // the same, where kernels read them
  std::unique_ptr<RecordedSteps> recorded_;  // null unless train.cuda_graph
  std::vector<RankTime> rank_times_;         // of the last step
  int64_t skipped_in_a_row_ = 0;
  std::string non_finite_;  // what made the last step be skipped; empty if it was not
};

}  // namespace lockstep
