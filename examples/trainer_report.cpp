// What the log says of a run, before its first step and of each step, and the metrics' line. For
// people and figures: nothing of it changes what is trained. Read next: start_point.h.
#include "core/backend.h"
#include "core/parallel.h"
#include "core/plural.h"
#include "dist/launch.h"
#include "dist/links.h"
#include "examples/build_info.h"
#include "examples/gemm_peak.h"
#include "examples/trainer.h"
#include "examples/validate.h"

namespace lockstep {

namespace {

// Small models send little, and compressed less.
std::string megabytes(double bytes) {
  return bytes == 0 ? "0 MB" : fmt::format("{:.{}f} MB", 1e-6 * bytes, bytes < 1e5 ? 3 : 1);
}

std::string step_line(const StepMetrics& m, int64_t steps) {
  return fmt::format(
      "step {:>{}}/{}  loss {:.4f}  lr {:.2e}  norm {:.2f}  {:.0f} tok/s  MFU {:.2f}  {:.0f} ms = "
      "{:.0f} compute + {:.0f} exposed comm + {:.0f} wait + {:.0f} data",
      m.step, std::to_string(steps).size(), steps, m.loss, m.lr, m.grad_norm, m.tokens_per_s,
      *m.mfu, m.step_ms, m.compute_ms, m.exposed_comm_ms, m.wait_ms, m.data_ms);
}

}  // namespace

void Trainer::write_header() {
  if (!first_) return;
  const Topology& where = communicator_.topology();
  const Cores c = cores();
  const Gpt& model = replica_.model();
  log_->info(fmt::format("attempt {} on {}: {}", metrics_->attempt(), host_name(), build_info()));
  log_->info(fmt::format("{} ({}) on {}, {} each; {} usable of {} present",
                         plural(where.size, "rank"), communicator_.backend(),
                         plural(where.hosts, "host"), plural(num_threads(), "thread"),
                         plural(c.usable, "core"), c.present));
  if (config_.dist.nccl_reduce == "native")
    log_->info(
        "NCCL sums gradients, in an order of its own (dist.nccl_reduce native): bits may differ "
        "between stages, numbers of ranks and runs");
  if (const std::string advice = cores_advice(c, where.local_size, num_threads()); !advice.empty())
    log_->warn(advice);
  for (const auto& [name, value] : relevant_environment())
    log_->info(fmt::format("environment {}={}", name, value));
  log_->info(fmt::format(
      "{} with {} parameters in {} on {}; step: {} tokens = {} x {} x {} x {}; attention by {}{}",
      config_.model.arch, model.parameter_count(), config_.train.precision, backend().description(),
      replica_.tokens_per_step(), plural(where.size, "rank"),
      plural(accumulation(config_, where.size), "micro batch", "micro batches"),
      plural(config_.train.micro_batch, "sample"), plural(config_.train.seq_len, "token"),
      replica_.attention(), config_.train.cuda_graph ? "; kernels recorded as CUDA graphs" : ""));
  for (const std::string& folder : foreign_shards_)
    log_->info(fmt::format(
        "data.tokenizer {} could not be checked: no made_from.txt in {} tells which one made the "
        "shards",
        config_.data.tokenizer, folder));
}

// What is split, and what it costs.
void Trainer::write_distribution() {
  const DistConfig& dist = config_.dist;
  if (!first_ || dist.reducer == "naive") return;
  const MemoryBytes memory = replica_.memory_plan(dist.zero_stage);
  const WireBytes wire = replica_.wire_plan();
  const bool reduced = dist.reduced();
  const int64_t exchanges = reduced ? accumulation(config_, communicator_.size()) : 1;
  const std::string& codec = dist.compression.codec;
  log_->info(fmt::format(
      "zero_stage {}, accumulate {}: gradients travel {} per step{}; a rank sends up to {} of "
      "gradients and {} of parameters per step, and holds {:.1f} MB of parameters, "
      "{:.1f} of gradients, {:.1f} of optimizer state, {:.1f} of buffers",
      dist.zero_stage, reduced ? "reduced" : "local",
      exchanges == 1 ? "once" : fmt::format("{} times", exchanges),
      codec == "none"
          ? ""
          : fmt::format(" as {} ({:.0f} % of their elements)", codec, 100 * wire.compressed),
      megabytes(wire.gradients), megabytes(wire.parameters), 1e-6 * memory.parameters,
      1e-6 * memory.gradients, 1e-6 * memory.optimizer, 1e-6 * (memory.buffers + memory.arrivals)));
  if (config_.optim.name == "onebit_adam")
    log_->info(fmt::format(
        "onebit_adam: after step {} the second moment stays as it is and ranks send momenta{}",
        dist.compression.warmup_steps,
        config_.optim.grad_clip > 0
            ? fmt::format("; optim.grad_clip {:g} ends there", config_.optim.grad_clip)
            : ""));
  if (codec != "none" && wire.compressed == 0)
    log_->warn(
        fmt::format("codec {} compresses nothing: no matrix has {} elements; lower "
                    "dist.compression.min_elements",
                    codec, dist.compression.min_elements));
  if (codec != "none" && dist.compression.warmup_steps >= config_.train.steps)
    log_->warn(
        fmt::format("codec {} compresses nothing in this run: dist.compression.warmup_steps {} of "
                    "train.steps {} are without it",
                    codec, dist.compression.warmup_steps, config_.train.steps));
}

void Trainer::measure_links() {
  const std::vector<HostLink> links = lockstep::measure_links(communicator_);
  if (!first_ || links.empty()) return;
  log_->info(lockstep::describe(links));
  for (const std::string& warning : link_warnings(links, config_.dist.backend)) log_->warn(warning);
}

// What MFU is a share of; every rank measures, because together they are slower.
void Trainer::measure_peak() {
  peak_gflops_ = measured_gemm_peak(config_.train.dtype(), 0.3);
  if (!first_) return;
  const FlopsPerToken flops = replica_.model().flops_per_token(config_.train.seq_len);
  log_->info(
      fmt::format("MFU counts {:.4g} (6 N, matrices) + {:.4g} (causal attention) FLOP per token "
                  "against {:.0f} GFLOP/s per rank, the best {} GEMM measured here at start",
                  flops.matmul, flops.attention, peak_gflops_, config_.train.precision));
}

void Trainer::report(const StepMetrics& step, bool last) {
  if (!first_) return;
  rank_times_.add(replica_.rank_times());
  StepMetrics m = step;
  const double flops = replica_.model().flops_per_token(config_.train.seq_len).total() *
                       static_cast<double>(m.tokens);
  m.mfu = flops / (m.step_ms * 1e6) / (peak_gflops_ * communicator_.size());
  metrics_->append(m);
  warn_of(m);
  if (m.val_loss)
    log_->info(fmt::format("step {}  validation loss {:.4f} nats per token", m.step, *m.val_loss));
  if (last || m.step == 1 || is_due(config_.log.every, m.step))
    log_->info(step_line(m, config_.train.steps));
  else
    log_->progress(step_line(m, config_.train.steps));
}

void Trainer::warn_of(const StepMetrics& m) {
  if (*m.mfu > 1 && !mfu_doubted_) {
    mfu_doubted_ = true;
    log_->warn(
        fmt::format("step {} has an MFU of {:.2f}: this machine was busier when the peak was "
                    "measured, at start; MFU means little in this attempt",
                    m.step, *m.mfu));
  }
  if (m.skipped > 0)
    log_->warn(fmt::format("step {} skipped: {} is not finite", m.step, replica_.non_finite()));
  if (m.step == 1)
    for (const std::string& name : replica_.unused_parameters())
      log_->warn(name + " gets no gradient; it counts as zero");
  if (const std::string slow = rank_times_.warning(communicator_.topology()); !slow.empty())
    log_->warn(slow);
}

}  // namespace lockstep
