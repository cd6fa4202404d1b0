// Data-parallel training, one step at a time. Read next: trainer.cpp.
#include "examples/replica.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/ops.h"
#include "dist/verify.h"
#include "examples/stopwatch.h"
#include "examples/validate.h"
#include "optim/schedule.h"

namespace lockstep {

namespace {

Tensor to_tensor(const std::vector<int32_t>& ids, int64_t rows) {
  return Tensor::from(ids, {rows, std::ssize(ids) / rows});
}

}  // namespace

Replica::Replica(const Config& config, Communicator& communicator)
    : config_(config),
      communicator_(communicator),
      accumulation_(accumulation(config, communicator.size())),
      model_(config.model, config.train.dtype(), config.train.seed),
      parameters_(model_.parameters()),
      optimizer_(make_optimizer(config.optim, parameters_)),
      gradients_(make_data_parallel(config.dist, communicator, parameters_)),
      train_data_(open_train_data(config.data, config.model.vocab_size, config.train.seed)),
      val_data_(open_val_data(config.data, config.model.vocab_size, config.train.seed)),
      sampler_(std::make_unique<TrainSampler>("data.train", train_data_->size(),
                                              config.train.seq_len, config.train.seed)) {
  start_after(0, 0);
}

StepMetrics Replica::step(int64_t t) {
  communicator_.enter({Phase::step, t});
  const Stopwatch clock;
  const int64_t allocations = Allocator::current().stats().system_allocations;
  const double data_before = loader_->waited_seconds();

  plan(t);
  std::vector<double> losses;
  for (int64_t micro = 0; micro < accumulation_; ++micro)
    losses.push_back(train_micro_batch(micro));
  const GradientReport report = gradients_->finish();
  const Stopwatch sync;
  const double loss = sum_over_ranks(losses) / static_cast<double>(tokens_per_step());
  const double sync_ms = sync.ms();
  clip_or_skip(report, loss);
  update();

  StepMetrics m;
  m.step = t;
  m.loss = loss;
  m.lr = scalars_.lr;
  m.grad_norm = report.norm;
  m.tokens = tokens_per_step();
  m.data_ms = 1e3 * (loader_->waited_seconds() - data_before);
  m.comm_ms = report.comm_ms;
  // What finish() waited beyond the communication itself, it waited for others to run.
  m.exposed_comm_ms = std::min(report.exposed_ms - report.wait_ms, report.comm_ms);
  m.wait_ms = report.exposed_ms - m.exposed_comm_ms + sync_ms;
  m.wire_bytes = report.wire_bytes;
  m.step_ms = clock.ms();
  m.compute_ms = m.step_ms - m.data_ms - m.exposed_comm_ms - m.wait_ms;
  m.tokens_per_s = 1e3 * static_cast<double>(m.tokens) / m.step_ms;
  m.samples_per_s = m.tokens_per_s / static_cast<double>(config_.train.seq_len);
  m.skipped = skipped_in_a_row_;
  m.peak_bytes = Allocator::current().stats().total_peak;
  m.allocations = Allocator::current().stats().system_allocations - allocations;
  return m;
}

// What this step's kernels read instead of arguments.
void Replica::plan(int64_t t) {
  scalars_ = {};
  scalars_.step = static_cast<int32_t>(t);
  scalars_.lr =
      static_cast<float>(learning_rate(config_.optim, t, config_.train.steps, tokens_per_step()));
  optimizer_->prepare(scalars_, t);
}

// Forward and backward; returns the sum of the micro batch's token losses. The gradient is that of
// the loss divided by the whole step's tokens, so gradients are summed, never averaged, over micro
// batches and ranks.
double Replica::train_micro_batch(int64_t micro) {
  const Batch& batch = loader_->next();
  const int64_t rows = config_.train.micro_batch;
  gradients_->begin_micro_step(micro, accumulation_);
  const ForwardContext context{.training = true,
                               .recompute = config_.train.recompute == "block",
                               .seed = static_cast<uint64_t>(config_.train.seed),
                               .first_sample = batch.first_sample,
                               .scalars = &scalars_};
  const Tensor loss = model_.loss(to_tensor(batch.x, rows), to_tensor(batch.y, rows), context);
  backward(scale(loss, static_cast<float>(1.0 / static_cast<double>(tokens_per_step()))));
  return loss.item<float>();
}

// Loss and norm are the same numbers on every rank, and so is what follows from them.
void Replica::clip_or_skip(const GradientReport& report, double loss) {
  const bool finite = std::isfinite(report.norm) && std::isfinite(loss);
  scalars_.grad_scale = finite ? clip_factor(report.norm, config_.optim.grad_clip) : 0.0f;
  scalars_.skip = finite ? 0 : 1;
  skipped_in_a_row_ = finite ? 0 : skipped_in_a_row_ + 1;
  non_finite_ = finite                      ? ""
                : report.non_finite.empty() ? "the loss"
                                            : "the gradient of " + report.non_finite;
}

void Replica::update() {
  for (size_t i = 0; i < parameters_.size(); ++i)
    optimizer_->step(i, gradients_->gradient(i), scalars_);
  gradients_->release();
}

// In fp64 and in order of the micro batches' global index, so that the sum does not depend on how
// they are dealt out (rank r has numbers rk .. rk + k - 1).
double Replica::sum_over_ranks(const std::vector<double>& by_micro_batch) {
  double sum = 0;
  for (const auto& bytes :
       communicator_.all_gather_bytes(std::as_bytes(std::span(by_micro_batch)))) {
    std::vector<double> theirs(bytes.size() / sizeof(double));
    std::memcpy(theirs.data(), bytes.data(), bytes.size());
    for (double x : theirs) sum += x;
  }
  return sum;
}

double Replica::evaluate() {
  check(val_data_ != nullptr, "[evaluate] no validation data; set data.val");
  NoGrad no_grad;
  const int64_t rows = config_.train.micro_batch, ranks = communicator_.size();
  const ValidationSampler sampler("data.val", val_data_->size(), config_.train.seq_len,
                                  config_.train.eval_batches * rows);
  const int64_t batches = (sampler.samples() + rows - 1) / rows,
                rounds = (batches + ranks - 1) / ranks;
  Loader loader(
      *val_data_, sampler,
      step_schedule(Deal::blocked, communicator_.rank(), static_cast<int>(ranks), rounds, rows),
      {.micro_batch = rows, .seq_len = config_.train.seq_len, .workers = config_.data.workers});
  std::vector<double> losses, counts;
  for (int64_t i = 0; i < rounds; ++i) {
    const Batch& batch = loader.next();
    counts.push_back(static_cast<double>(batch.targets));
    losses.push_back(
        batch.targets == 0
            ? 0.0
            : model_.loss(to_tensor(batch.x, rows), to_tensor(batch.y, rows), {}).item<float>());
  }
  return sum_over_ranks(losses) / sum_over_ranks(counts);
}

void Replica::start_after(int64_t t, int64_t skipped_in_a_row) {
  skipped_in_a_row_ = skipped_in_a_row;
  loader_ = std::make_unique<Loader>(
      *train_data_, *sampler_,
      step_schedule(Deal::blocked, communicator_.rank(), communicator_.size(), accumulation_,
                    config_.train.micro_batch),
      Loader::Options{.micro_batch = config_.train.micro_batch,
                      .seq_len = config_.train.seq_len,
                      .workers = config_.data.workers,
                      .start = t * accumulation_});
}

void Replica::verify() {
  check_same(communicator_, "weights", describe_with_hashes(parameters_));
}

void Replica::weights_changed() {
  optimizer_ = make_optimizer(config_.optim, parameters_);
}

std::vector<NamedTensor> Replica::state() const {
  std::vector<NamedTensor> all = parameters_;
  const std::vector<NamedTensor> optimizer = optimizer_->state();
  all.insert(all.end(), optimizer.begin(), optimizer.end());
  return all;
}

int64_t Replica::tokens_per_step() const {
  return config_.train.micro_batch * accumulation_ * communicator_.size() * config_.train.seq_len;
}

std::string Replica::data_identity() const {
  return train_data_->identity();
}

}  // namespace lockstep
