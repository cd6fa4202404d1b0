// Data-parallel training, one step at a time. Read step() first. Read next: step_account.h,
// recorded_steps.h, trainer.h.
#include "examples/replica.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/ops.h"
#include "data/prepare.h"
#include "dist/verify.h"
#include "examples/step_account.h"
#include "examples/validate.h"
#include "optim/schedule.h"

namespace lockstep {

namespace {

Shape shape_of(const std::vector<int32_t>& ids, int64_t rows) {
  return {rows, std::ssize(ids) / rows};
}

// Parameters are gathered and released by the model's children: embedding, blocks, norm, head. The
// unit of each parameter, in order.
std::vector<size_t> units_of(const Gpt& model) {
  std::vector<size_t> units;
  size_t unit = 0;
  for (const Module* child : model.children()) {
    const size_t own = child->parameters().size();
    units.insert(units.end(), own, unit);
    unit += own > 0;
  }
  return units;
}

bool sharded(const DistConfig& dist) {
  return dist.zero_stage == 3;
}

// Read once all of a step is on its way: of a device this waits for it.
std::vector<double> numbers_in(const std::vector<Tensor>& scalars) {
  std::vector<double> numbers;
  for (const Tensor& scalar : scalars) numbers.push_back(scalar.item<float>());
  return numbers;
}

// In fp64 and in order of the micro batches' global index, so that the sum does not depend on how
// they are dealt out. by_rank[r]: of rank r's micro batches.
double sum_in_order(const std::vector<std::vector<double>>& by_rank, Deal deal) {
  const size_t ranks = by_rank.size(), count = by_rank[0].size();
  double sum = 0;
  for (size_t i = 0; i < ranks * count; ++i)
    sum += deal == Deal::blocked ? by_rank[i / count][i % count] : by_rank[i % ranks][i / ranks];
  return sum;
}

}  // namespace

Replica::Replica(const Config& config, Communicator& communicator)
    : config_(config),
      communicator_(communicator),
      accumulation_(accumulation(config, communicator.size())),
      model_(config.model, config.train.dtype(), config.train.seed, !sharded(config.dist)),
      parameters_(model_.parameters()),
      unit_of_(units_of(model_)),
      gradients_(make_data_parallel(config.dist, communicator, parameters_, unit_of_, sum_order(),
                                    initialise_later(), sent_momentum())),
      optimizer_(
          make_optimizer(config.optim, gradients_->shards(), config.dist.compression.warmup_steps)),
      train_data_(open_train_data(config.data, config.model.vocab_size, config.train.seed)),
      val_data_(open_val_data(config.data, config.model.vocab_size, config.train.seed)),
      sampler_(std::make_unique<TrainSampler>("data.train", train_data_->size(),
                                              config.train.seq_len, config.train.seed)) {
  const ModelConfig& m = config.model;
  attention_ = backend().use_attention(
      config.train.attention, {m.n_head, m.arch == "llama" ? m.kv_heads() : m.n_head, m.head_dim()},
      config.train.dtype(), config.train.micro_batch, config.train.seq_len);
  attach_units();
  if (config.train.cuda_graph)
    recorded_ = std::make_unique<RecordedSteps>(*Recorder::current(), config.train.micro_batch,
                                                config.train.seq_len);
  start_after(0, 0);
}

SumOrder Replica::sum_order() const {
  return config_.train.reproducible == "any_world" ? SumOrder::any_world : SumOrder::same_world;
}

// Of what ranks send once they compress; 0: gradients. For onebit_adam, momenta.
double Replica::sent_momentum() const {
  return config_.optim.name == "onebit_adam" ? config_.optim.betas[0] : 0;
}

// Sharded parameters are drawn one by one, because all of them may not fit.
Initialise Replica::initialise_later() const {
  if (!sharded(config_.dist)) return {};
  return [this, inits = model_.inits()](size_t i) {
    draw(parameters_[i], inits[i], static_cast<uint64_t>(config_.train.seed));
  };
}

// Whoever uses parameters says so: a child its own and those it borrows.
void Replica::attach_units() {
  const auto unit_of_tensor = [&](const Tensor& tensor) {
    const auto same = [&](const NamedTensor& p) { return p.tensor.node() == tensor.node(); };
    return unit_of_[std::ranges::find_if(parameters_, same) - parameters_.begin()];
  };
  for (Module* child : model_.children()) {
    std::set<size_t> units;
    for (const NamedTensor& p : child->parameters()) units.insert(unit_of_tensor(p.tensor));
    for (const NamedTensor& p : child->borrowed()) units.insert(unit_of_tensor(p.tensor));
    for (size_t unit : units) {
      const auto acquire = [this, unit] {
        repeat_on_host([this, unit] { gradients_->acquire(unit); });
      };
      const auto release = [this, unit] {
        repeat_on_host([this, unit] { gradients_->release(unit); });
      };
      child->hooks.before_forward.push_back(acquire);
      child->hooks.after_forward.push_back(release);
      child->hooks.before_backward.push_back(acquire);
      child->hooks.after_backward.push_back(release);
    }
  }
}

StepMetrics Replica::step(int64_t t) {
  communicator_.enter({Phase::step, t});
  StepAccount account(*loader_, memory());
  plan(t);
  std::vector<Tensor> sums;
  for (int64_t micro = 0; micro < accumulation_; ++micro) sums.push_back(train_micro_batch(micro));
  const GradientReport report = gradients_->finish();
  const std::vector<double> losses = numbers_in(sums);
  const RankTime mine = account.gradients_complete(report);
  const double loss = tell_others(losses, mine) / static_cast<double>(tokens_per_step());
  account.losses_known();
  clip_or_skip(report, loss);
  update();
  return metrics(loss, report, account.costs(report, memory()));
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
Tensor Replica::train_micro_batch(int64_t micro) {
  const Batch& batch = loader_->next();
  check_tokens(batch);
  MicroStep step{.step = scalars_.step, .index = micro, .count = accumulation_};
  step.replayed = recorded_ && recorded_->replays(step);
  gradients_->begin_micro_step(step);
  scalars_.first_sample = batch.first_sample;
  kernel_scalars_.write(scalars_);
  const ForwardContext context{.training = true,
                               .recompute = config_.train.recompute == "block",
                               .seed = static_cast<uint64_t>(config_.train.seed),
                               .scalars = &kernel_scalars_.for_kernels()};
  const auto with_gradients = [&](const Tensor& loss) {
    backward(scale(loss, static_cast<float>(1.0 / static_cast<double>(tokens_per_step()))));
    return loss.detach();
  };
  if (!recorded_) return with_gradients(batch_loss(batch, context));
  return recorded_->run(step, batch, [&](const Tensor& tokens, const Tensor& targets) {
    return with_gradients(model_.loss(tokens, targets, context));
  });
}

// Here, because a device does not check them.
void Replica::check_tokens(const Batch& batch) const {
  const int64_t rows = config_.train.micro_batch, vocab = config_.model.vocab_size;
  check_ids("data", batch.x, shape_of(batch.x, rows), 0, vocab);
  check_ids("data", batch.y, shape_of(batch.y, rows), -1, vocab);
}

// Of tokens that were checked.
Tensor Replica::batch_loss(const Batch& batch, const ForwardContext& context) {
  const int64_t rows = config_.train.micro_batch;
  return model_.loss(Tensor::from(batch.x, shape_of(batch.x, rows)),
                     Tensor::from(batch.y, shape_of(batch.y, rows)), context);
}

// Loss and norm are the same numbers on every rank, and so is what follows from them.
void Replica::clip_or_skip(const GradientReport& report, double loss) {
  const bool finite = std::isfinite(report.norm) && std::isfinite(loss);
  // Once the second moment is frozen nothing is clipped: of that no error feedback would hear.
  const double limit = scalars_.variance_frozen ? 0 : config_.optim.grad_clip;
  scalars_.grad_scale = finite ? clip_factor(report.norm, limit) : 0.0f;
  scalars_.skip = finite ? 0 : 1;
  skipped_in_a_row_ = finite ? 0 : skipped_in_a_row_ + 1;
  non_finite_ = finite                      ? ""
                : report.non_finite.empty() ? "the loss"
                                            : "the gradient of " + report.non_finite;
  kernel_scalars_.write(scalars_);
}

void Replica::update() {
  for (size_t i = 0; i < gradients_->shards().size(); ++i)
    optimizer_->step(i, gradients_->gradient(i), kernel_scalars_.for_kernels());
  gradients_->end_step(!scalars_.skip);
  if (scalars_.step == config_.dist.compression.warmup_steps) precondition();
}

// From the second moments as they are frozen, so a resume need not know of it.
void Replica::precondition() {
  if (sent_momentum() > 0) gradients_->precondition(optimizer_->second_moments());
}

// In one exchange all that ranks want to know of each other's step. Returns the sum of all losses.
double Replica::tell_others(const std::vector<double>& losses, const RankTime& mine) {
  std::vector<double> values = losses;
  values.insert(values.end(), {mine.compute_ms, mine.data_ms});
  std::vector<std::vector<double>> all = gather_values(communicator_, values);
  rank_times_.clear();
  for (auto& theirs : all) {
    const auto times = theirs.end() - 2;
    rank_times_.push_back({times[0], times[1]});
    theirs.erase(times, theirs.end());
  }
  return sum_in_order(all, deal());
}

// What the step did, beside what it cost.
StepMetrics Replica::metrics(double loss, const GradientReport& report, StepMetrics m) const {
  m.step = scalars_.step;
  m.loss = loss;
  m.lr = scalars_.lr;
  m.grad_norm = report.norm;
  m.tokens = tokens_per_step();
  m.tokens_per_s = 1e3 * static_cast<double>(m.tokens) / m.step_ms;
  m.samples_per_s = m.tokens_per_s / static_cast<double>(config_.train.seq_len);
  m.skipped = skipped_in_a_row_;
  const SlowestRank slowest = slowest_rank(rank_times_);
  m.slowest_rank = slowest.rank;
  m.imbalance = slowest.imbalance;
  return m;
}

double Replica::sum_over_ranks(const std::vector<double>& by_micro_batch) {
  return sum_in_order(gather_values(communicator_, by_micro_batch), Deal::blocked);
}

// Micro batches that are exchanged one by one are dealt out in turn, so that what is summed over
// ranks first are neighbours.
Deal Replica::deal() const {
  return config_.dist.reduced() ? Deal::interleaved : Deal::blocked;
}

void Replica::check_validation_data() const {
  if (!val_data_) return;
  const ValidationSampler sampler = validation_sampler();
  const TokenWindow last = sampler.window(sampler.samples() - 1);
  constexpr int64_t piece = 1 << 16;
  std::vector<int32_t> ids(piece);
  for (int64_t at = 0, end = last.start + last.length + 1; at < end; at += piece)
    val_data_->read(at, std::min(piece, end - at), ids.data());
}

std::vector<std::string> Replica::check_tokenizer(const Tokenizer& tokenizer) const {
  std::vector<std::string> unknown = check_made_by(tokenizer, *train_data_);
  if (!val_data_) return unknown;
  for (const std::string& folder : check_made_by(tokenizer, *val_data_))
    if (std::ranges::find(unknown, folder) == unknown.end()) unknown.push_back(folder);
  return unknown;
}

ValidationSampler Replica::validation_sampler() const {
  return {"data.val", val_data_->size(), config_.train.seq_len,
          config_.train.eval_batches * config_.train.micro_batch};
}

double Replica::evaluate() {
  check(val_data_ != nullptr, "[evaluate] no validation data; set data.val");
  NoGrad no_grad;
  const int64_t rows = config_.train.micro_batch, ranks = communicator_.size();
  const ValidationSampler sampler = validation_sampler();
  const int64_t batches = (sampler.samples() + rows - 1) / rows,
                rounds = (batches + ranks - 1) / ranks;
  Loader loader(
      *val_data_, sampler,
      step_schedule(Deal::blocked, communicator_.rank(), static_cast<int>(ranks), rounds, rows),
      {.micro_batch = rows, .seq_len = config_.train.seq_len, .workers = config_.data.workers});
  std::vector<double> losses, counts;
  for (int64_t i = 0; i < rounds; ++i) {
    // One without targets as well, in the last round: its loss is zero, but other ranks may need
    // this one for gathering parameters.
    const Batch& batch = loader.next();
    check_tokens(batch);
    counts.push_back(static_cast<double>(batch.targets));
    losses.push_back(batch_loss(batch, {}).item<float>());
  }
  return sum_over_ranks(losses) / sum_over_ranks(counts);
}

void Replica::start_after(int64_t t, int64_t skipped_in_a_row) {
  skipped_in_a_row_ = skipped_in_a_row;
  if (t > 0 && t >= config_.dist.compression.warmup_steps) precondition();
  loader_ =
      std::make_unique<Loader>(*train_data_, *sampler_,
                               step_schedule(deal(), communicator_.rank(), communicator_.size(),
                                             accumulation_, config_.train.micro_batch),
                               Loader::Options{.micro_batch = config_.train.micro_batch,
                                               .seq_len = config_.train.seq_len,
                                               .workers = config_.data.workers,
                                               .start = t * accumulation_});
}

// Unit by unit, because more than one may not fit.
void Replica::verify() {
  std::string lines;
  for (size_t begin = 0, end; begin < parameters_.size(); begin = end) {
    end = std::ranges::upper_bound(unit_of_, unit_of_[begin]) - unit_of_.begin();
    gradients_->acquire(unit_of_[begin]);
    lines += describe_with_hashes(std::span(parameters_).subspan(begin, end - begin));
    gradients_->release(unit_of_[begin]);
  }
  check_same(communicator_, "weights", lines);
}

void Replica::state_changed() {
  gradients_->shards_changed();
}

void Replica::weights_changed() {
  gradients_->shards_changed();
  optimizer_ =
      make_optimizer(config_.optim, gradients_->shards(), config_.dist.compression.warmup_steps);
}

std::vector<NamedTensor> Replica::state() const {
  std::vector<NamedTensor> all = gradients_->shards();
  for (const auto& more : {optimizer_->state(), gradients_->state()})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

// What is recorded has an allocator of its own; what both hold at most is at most the sum.
MemoryStats Replica::memory() const {
  MemoryStats all = Allocator::current().stats();
  if (!recorded_) return all;
  const MemoryStats recorded = recorded_->memory();
  for (int c = 0; c < category_count; ++c) {
    all.current[c] += recorded.current[c];
    all.peak[c] += recorded.peak[c];
  }
  all.total_peak += recorded.total_peak;
  all.held += recorded.held;
  all.system_allocations += recorded.system_allocations;
  return all;
}

int64_t Replica::tokens_per_step() const {
  return config_.train.micro_batch * accumulation_ * communicator_.size() * config_.train.seq_len;
}

std::string Replica::data_identity() const {
  return train_data_->identity();
}

}  // namespace lockstep
