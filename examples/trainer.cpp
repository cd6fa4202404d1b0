// The training run. Read train() first. Read next: trainer_report.cpp, start_point.h.
#include "examples/trainer.h"

#include <filesystem>

#include "core/parallel.h"
#include "core/plural.h"
#include "dist/launch.h"
#include "examples/agree.h"
#include "examples/build_info.h"
#include "examples/checkpoint.h"
#include "examples/config_io.h"
#include "examples/generate.h"
#include "examples/ranks.h"
#include "examples/saved_state.h"
#include "examples/signals.h"
#include "examples/start_point.h"

namespace lockstep {

Trainer::Trainer(const Config& config, Communicator& communicator)
    : config_(config),
      communicator_(communicator),
      first_(communicator.rank() == 0),
      tokenizer_(open_tokenizer(config.data.tokenizer)),
      replica_(config, communicator) {
  if (tokenizer_) check_vocab(*tokenizer_, config.model.vocab_size);
  on_rank_0(communicator_, [&] {
    if (tokenizer_) foreign_shards_ = replica_.check_tokenizer(*tokenizer_);
    replica_.check_validation_data();
    folder_.emplace(config_.run_dir);
    log_ = std::make_unique<RunLog>(folder_->log_path(), config_.log.progress);
    metrics_.emplace(folder_->metrics_path());
    return std::string();
  });
  all_or_none(communicator_, [&] {
    if (!first_) member_.emplace(config_.run_dir, communicator_.rank());
    return std::string();
  });
}

Exit Trainer::run() {
  try {
    return train();
  } catch (const Error& error) {
    if (first_) log_->last_words(error.what());
    throw;
  }
}

Exit Trainer::train() {
  catch_stop_signals();
  write_header();
  write_distribution();
  int64_t t = resume();
  on_rank_0(communicator_, [&] {
    folder_->write_config(print_config(config_));
    return std::string();
  });
  replica_.verify();
  measure_links();
  measure_peak();
  while (t < config_.train.steps) {
    StepMetrics metrics = replica_.step(++t);
    const int signal = agree_on_signal();
    if (signal && first_)
      log_->info(fmt::format("signal {}: stopping after step {}", signal_name(signal), t));
    const bool last = t == config_.train.steps, stops = signal && !last;
    if (stops) save(t);  // before all else: whoever sent the signal may not wait for an evaluation
    occasional_work(metrics, last);
    report(metrics, last);
    stop_if_diverged(t);
    if (!stops && should_save(t, last)) save(t);
    if (is_due(config_.dist.verify_every, t)) replica_.verify();
    if (stops) {
      if (first_)
        log_->info(fmt::format(
            "stopped after step {} of {}; the same command resumes{}", t, config_.train.steps,
            config_.checkpoint.resume == "none" ? " with --set checkpoint.resume=auto" : ""));
      return Exit::restart;
    }
  }
  if (first_)
    log_->info(fmt::format(
        "done: {}{}, newest checkpoint {}", plural(t, "step"),
        t == config_.train.steps ? "" : fmt::format(" (train.steps is {})", config_.train.steps),
        folder_->checkpoint_path(saved_)));
  return Exit::ok;
}

// Not while steps are being skipped: weights that cannot go on would push out those that can. What
// was due then is saved after the next step that is good.
bool Trainer::should_save(int64_t t, bool last) {
  save_is_due_ |= is_due(config_.checkpoint.every, t);
  return last || (save_is_due_ && replica_.skipped_in_a_row() == 0);
}

// What is not done at every step; its time belongs to no step.
void Trainer::occasional_work(StepMetrics& metrics, bool last) {
  const int64_t t = metrics.step;
  const PhaseScope scope(communicator_, {Phase::evaluation, t});
  const bool has_val = !config_.data.val.empty() || config_.data.format == "synthetic";
  if (has_val && (last || is_due(config_.train.eval_every, t)))
    metrics.val_loss = replica_.evaluate();
  if (config_.train.sample_tokens > 0 && (last || is_due(config_.train.sample_every, t)))
    print_sample(t);
}

// Where to start: the step that the newest complete checkpoint holds, or 0.
int64_t Trainer::resume() {
  StartPoint start;  // rank 0 knows all of it
  const std::string found = on_rank_0(communicator_, [&] {
    for (const std::string& line : clear_leftovers(folder_->checkpoints())) log_->warn(line);
    start = find_start(*folder_, config_.checkpoint.resume,
                       [&](const std::string& why) { log_->warn(why); });
    if (!start.note.empty()) log_->info(start.note);
    return start.checkpoint;
  });
  if (found.empty()) {
    if (!config_.model.init_from.empty()) load_weights(config_.model.init_from);
    take_over_folder(start.abandons, 0);
    return 0;
  }
  const SavedRun saved = SavedRun::from_json(open_checkpoint(found, Check::sizes).metadata, found);
  const std::vector<std::string> notes = check_resumable(saved, describe(saved.step));
  load_state(found);
  take_over_folder(start.abandons, saved.step);
  replica_.start_after(saved.step, saved.skipped_in_a_row);
  saved_ = saved.step;
  if (first_) {
    log_->info(fmt::format("resumed from {} after step {}", found, saved.step));
    for (const std::string& note : notes) log_->warn("resumed although " + note);
  }
  return saved.step;
}

// Where the newest is gone on with, there is nothing to set aside but what is damaged, and that
// stays for inspection.
void Trainer::take_over_folder(bool abandons, int64_t step) {
  on_rank_0(communicator_, [&] {
    if (metrics_->attempt() > 1) check_same_run(*folder_, print_config(config_));
    if (abandons)
      for (const std::string& line : set_later_aside(folder_->checkpoints(), step))
        log_->warn(line);
    return std::string();
  });
}

void Trainer::load_state(const std::string& checkpoint) {
  all_or_none(communicator_, [&] {
    const SavedState saved(open_checkpoint(checkpoint, Check::sizes));
    const std::vector<NamedTensor> state = replica_.state();
    saved.restore(state, communicator_.rank(), communicator_.size());
    if (first_)
      for (const std::string& note : saved.residual_notes(state, communicator_.size()))
        log_->warn(note);
    return std::string();
  });
  replica_.state_changed();
}

// Those of another run, whose model must have the same parameters, no more and no fewer: a
// checkpoint, or a file that was exported.
void Trainer::load_weights(const std::string& path) {
  const bool exported = std::filesystem::is_regular_file(path);
  on_rank_0(communicator_, [&] { return exported ? path : open_checkpoint(path).path; });
  all_or_none(communicator_, [&] {
    const SavedState saved =
        exported ? SavedState(path) : SavedState(open_checkpoint(path, Check::sizes));
    saved.check_parameters(replica_.model().parameters());
    for (const NamedTensor& shard : replica_.weights()) {
      saved.read(shard);
      check_finite(shard, path);
    }
    return std::string();
  });
  replica_.weights_changed();
}

// A signal may have reached some ranks only: what any of them got, all obey after this step.
int Trainer::agree_on_signal() {
  return static_cast<int>(max_over_ranks(communicator_, stop_signal()));
}

void Trainer::stop_if_diverged(int64_t t) const {
  if (replica_.skipped_in_a_row() < config_.train.max_skipped) return;
  fail(Exit::data,
       "[train] step {}: {} in a row had a loss or gradient that is not finite, in the last one "
       "first in {}; a lower optim.lr, longer warm-up or grad_clip may help ({})",
       t, plural(replica_.skipped_in_a_row(), "step"), replica_.non_finite(),
       saved_ > 0 ? fmt::format("in another run_dir, which may start from these weights: "
                                "model.init_from={}",
                                checkpoint_path(checkpoints_of(config_.run_dir), saved_))
                  : "no checkpoint was saved yet");
}

// Every rank generates the same text, because parameters may have to be gathered for it.
void Trainer::print_sample(int64_t t) {
  if (!tokenizer_) return;
  const std::vector<int32_t> text =
      generate(replica_.model(), tokenizer_->encode(config_.train.sample_prompt),
               {.tokens = config_.train.sample_tokens,
                .vocab_size = tokenizer_->vocab_size(),
                .seed = static_cast<uint64_t>(config_.train.seed)});
  if (first_) log_->info(fmt::format("sample after step {}:\n{}", t, tokenizer_->decode(text)));
}

void Trainer::save(int64_t t) {
  const PhaseScope scope(communicator_, {Phase::checkpoint, t});
  SaveRequest request;
  request.step = t;
  // Of steps that were skipped the weights may be worth nothing: nothing goes to make room for
  // them.
  request.keep_last = replica_.skipped_in_a_row() > 0 ? 0 : config_.checkpoint.keep_last;
  request.folder = checkpoints_of(config_.run_dir);
  request.files = state_files(communicator_.rank(), replica_.state());
  if (first_) request.metadata = describe(t).to_json();
  const std::string path = save_checkpoint(communicator_, request);
  saved_ = t;
  save_is_due_ = false;
  if (first_) log_->info(fmt::format("saved {}", path));
}

SavedRun Trainer::describe(int64_t t) const {
  const auto environment = relevant_environment();
  return {.config = print_config(config_),
          .data_identity = replica_.data_identity(),
          .tokenizer = tokenizer_ ? tokenizer_->identity() : "none",
          .step = t,
          .global_batch = replica_.tokens_per_step() / config_.train.seq_len,
          .skipped_in_a_row = replica_.skipped_in_a_row(),
          .ranks = communicator_.size(),
          .accumulate = config_.dist.reduced() ? "reduced" : "local",
          .threads = num_threads(),
          .cpu = cpu_compiled_for(),
          .environment = {environment.begin(), environment.end()}};
}

Exit train(const Config& config) {
  Exit exit = Exit::ok;
  run_ranks(config, [&](Communicator& communicator) {
    const Exit mine = Trainer(config, communicator).run();
    if (communicator.rank() == 0) exit = mine;
  });
  return exit;
}

}  // namespace lockstep
