// `trainer bench step`: training steps without a run folder: tokens/s, MFU, where the time goes,
// how much of it could be hidden, memory by category. Medians over steps. Read next: replica.cpp,
// which is what is measured.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "core/median.h"
#include "core/parallel.h"
#include "core/plural.h"
#include "dist/communicator.h"
#include "examples/bench_command.h"
#include "examples/bench_overlap.h"
#include "examples/bench_what_if.h"
#include "examples/command.h"
#include "examples/config_io.h"
#include "examples/gemm_peak.h"
#include "examples/machine_load.h"
#include "examples/rank_times.h"
#include "examples/ranks.h"
#include "examples/replica.h"

namespace lockstep {

namespace {

using Json = nlohmann::ordered_json;

struct StepOptions {
  std::string config, json;
  std::vector<std::string> set;
  int warmup = 3, steps = 15;
  int apart = 4;         // steps without overlap, for the bound
  double link_mbit = 0;  // 0: measured
};

struct Measured {
  StepMetrics step;
  double peak;  // GFLOP/s of one rank
};

// What steps are for.
enum class Use { nothing, counts, apart };

// In two rounds, so that a machine whose speed changes changes it for both. If parameters travel
// from one step into the next, the first one after a change of mode is for nothing.
std::vector<Use> plan_steps(const StepOptions& options, int apart, bool parameters_travel) {
  std::vector<Use> plan(options.warmup, Use::nothing);
  const auto add = [&](Use use, int total, int round) {
    const int now = total * (round + 1) / 2 - total * round / 2;
    if (apart > 0 && now > 0 && parameters_travel) plan.push_back(Use::nothing);
    plan.insert(plan.end(), now, use);
  };
  for (int round = 0; round < 2; ++round) {
    add(Use::counts, options.steps, round);
    add(Use::apart, apart, round);
  }
  return plan;
}

struct Spread {
  double median, least, most;
};

template <class Field>
Spread spread(const std::vector<Measured>& steps, Field field) {
  std::vector<double> v;
  for (const Measured& m : steps) v.push_back(static_cast<double>(field(m)));
  const auto [least, most] = std::ranges::minmax(v);
  return {median(v), least, most};
}

// What rank 0 prints and writes; on the others nothing comes of it.
struct Report {
  Json json;
  bool shown;

  template <class... Args>
  void print(fmt::format_string<Args...> text, Args&&... args) const {
    if (shown) fmt::print(text, std::forward<Args>(args)...);
  }
  // One line and one field.
  void row(const char* name, const Spread& s, int digits) { row(name, name, s, 1, digits); }
  // As above; the JSON has bytes.
  void row_of_bytes(const char* name, const Spread& s) {
    row(name, fmt::format("{}, MB", name), s, 1e-6, 2);
  }

 private:
  void row(const char* name, const std::string& label, const Spread& s, double unit, int digits) {
    print("{:<22}{:>14.{}f}{:>14.{}f}{:>14.{}f}\n", label, unit * s.median, digits, unit * s.least,
          digits, unit * s.most, digits);
    json[name] = {{"median", s.median}, {"min", s.least}, {"max", s.most}};
  }
};

Report begin_report(const StepOptions& options, const Config& config, Replica& replica,
                    const Communicator& communicator, const FlopsPerToken& flops) {
  Report report{{{"config", options.config},
                 {"precision", config.train.precision},
                 {"ranks", communicator.size()},
                 {"threads", num_threads()}},
                communicator.rank() == 0};
  report.print("# {} {}, {} parameters, {}; {} x {}; {} tokens per step\n", config.model.arch,
               options.config, replica.model().parameter_count(), config.train.precision,
               plural(communicator.size(), "rank"), plural(num_threads(), "thread"),
               replica.tokens_per_step());
  report.print(
      "# FLOP per token {:.4g} = {:.4g} (6 N, matrices and head) + {:.4g} (causal attention)\n",
      flops.total(), flops.matmul, flops.attention);
  return report;
}

// `flops`: of a step, all ranks together.
void show_steps(Report& report, const std::vector<Measured>& steps, double flops, int ranks) {
  report.print("{:<22}{:>14}{:>14}{:>14}   over {}\n", "", "median", "min", "max",
               plural(std::ssize(steps), "step"));
  const auto row = [&](const char* name, int digits, auto field) {
    report.row(name, spread(steps, field), digits);
  };
  const auto row_of_bytes = [&](const char* name, auto field) {
    report.row_of_bytes(name, spread(steps, field));
  };
  const auto mfu = [&](const Measured& m) {
    return flops / (m.step.step_ms * 1e6) / (m.peak * ranks);
  };
  row("tokens_per_s", 0, [](auto& m) { return m.step.tokens_per_s; });
  row("peak_gflops", 0, [](auto& m) { return m.peak; });
  row("mfu", 3, mfu);
  row("step_ms", 1, [](auto& m) { return m.step.step_ms; });
  row("compute_ms", 1, [](auto& m) { return m.step.compute_ms; });
  row("comm_ms", 2, [](auto& m) { return m.step.comm_ms; });
  row("exposed_comm_ms", 2, [](auto& m) { return m.step.exposed_comm_ms; });
  row("wait_ms", 2, [](auto& m) { return m.step.wait_ms; });
  row("data_ms", 2, [](auto& m) { return m.step.data_ms; });
  row_of_bytes("wire_bytes", [](auto& m) { return m.step.wire_bytes; });
  row_of_bytes("param_bytes", [](auto& m) { return m.step.param_bytes; });
  row_of_bytes("host_bytes", [](auto& m) { return m.step.host_bytes; });
  row("allocations", 0, [](auto& m) { return m.step.allocations; });
  row("compression", 2, [](auto& m) { return m.step.compression; });
}

// `arrivals` of any rank, the most: beside what allocators count.
void show_memory(Report& report, const MemoryStats& memory, int64_t arrivals) {
  report.print("\n{:<22}{:>14}{:>14}\n", "memory, MB", "now", "peak");
  const auto row = [&](const char* name, int64_t current, int64_t peak) {
    report.print("{:<22}{:>14.1f}{:>14.1f}\n", name, 1e-6 * static_cast<double>(current),
                 1e-6 * static_cast<double>(peak));
    report.json["memory"][name] = {{"current", current}, {"peak", peak}};
  };
  for (int c = 0; c < category_count; ++c)
    row(name_of(static_cast<Category>(c)), memory.current[c], memory.peak[c]);
  row("total", memory.total(), memory.total_peak);
  if (arrivals > 0) row("arrivals", arrivals, arrivals);
}

// The formula for every stage, so that they can be compared before one is chosen; the allocator's
// figures above are those of the stage that ran.
void show_plans(Report& report, const Replica& replica, const DistConfig& dist) {
  if (dist.reducer == "naive") return;
  report.print("\n{:<22}{:>11}{:>11}{:>11}{:>11}{:>11}{:>11}\n", "formula, MB per rank",
               "parameters", "gradients", "optimizer", "buffers", "arrivals", "total");
  for (int stage = 0; stage <= 3; ++stage) {
    const MemoryBytes plan = replica.memory_plan(stage);
    report.print("{:<22}{:>11.1f}{:>11.1f}{:>11.1f}{:>11.1f}{:>11.1f}{:>11.1f}\n",
                 fmt::format("zero_stage {}{}", stage, stage == dist.zero_stage ? " (ran)" : ""),
                 1e-6 * plan.parameters, 1e-6 * plan.gradients, 1e-6 * plan.optimizer,
                 1e-6 * plan.buffers, 1e-6 * plan.arrivals, 1e-6 * plan.total());
    report.json["memory_formula"][stage] = {{"parameters", plan.parameters},
                                            {"gradients", plan.gradients},
                                            {"optimizer", plan.optimizer},
                                            {"buffers", plan.buffers},
                                            {"arrivals", plan.arrivals}};
  }
}

// Slowest first, and not a whole cluster.
void show_ranks(Report& report, std::span<const RankTime> by_rank, const Topology& where) {
  for (const RankTime& its : by_rank)
    report.json["by_rank"].push_back({{"compute_ms", its.compute_ms}, {"data_ms", its.data_ms}});
  if (by_rank.size() == 1) return;
  std::vector<int> ranks(by_rank.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::ranges::sort(ranks, std::greater(), [&](int r) { return by_rank[r].ms(); });
  ranks.resize(std::min<size_t>(ranks.size(), 8));
  report.print("\n{:<22}{:>14}{:>14}   until its gradients are complete; slowest first\n",
               "by rank, ms", "computing", "data");
  for (int r : ranks)
    report.print("{:<22}{:>14.1f}{:>14.1f}\n", where.describe(r), by_rank[r].compute_ms,
                 by_rank[r].data_ms);
}

struct Run {
  std::vector<Measured> steps;
  RankTimes ranks;  // of the same steps
  std::vector<StepTrace> apart;
};

// The peak is measured between the steps, because clocks and neighbours of a machine change within
// seconds: what counts for a step is the better of the peaks just before and just after it. Not
// where parameters travel from step to step, or the time between steps counts: there the nearest
// one.
Run measure(const std::vector<Use>& plan, bool parameters_travel, DType dtype, Replica& replica,
            Communicator& communicator) {
  Run run;
  double before = measured_gemm_peak(dtype, 1.0);
  communicator.barrier();
  for (size_t i = 0; i < plan.size(); ++i) {
    const bool apart_follows = i + 1 < plan.size() && plan[i + 1] == Use::apart;
    const bool apart = plan[i] == Use::apart || (plan[i] == Use::nothing && apart_follows);
    if (std::ranges::count(plan, Use::apart) > 0) replica.gradients().set_overlap(!apart);
    const StepMetrics m = replica.step(static_cast<int64_t>(i) + 1);
    double after = before;
    if (!parameters_travel && !apart && !apart_follows) {
      after = measured_gemm_peak(dtype, 0.3);
      communicator.barrier();  // products take ranks unequal times, which is not a step's waiting
    }
    if (plan[i] == Use::counts) {
      run.steps.push_back({m, std::max(before, after)});
      run.ranks.add(replica.rank_times());
    }
    if (plan[i] == Use::apart) run.apart.push_back(replica.gradients().trace());
    before = after;
  }
  return run;
}

// What the step takes at best, and what would make that less. Collective.
void show_bound(Report& report, const StepOptions& options, const Config& config, Replica& replica,
                Communicator& communicator, const Run& run) {
  const OverlapReport overlap = report_overlap(communicator, run.apart, options.link_mbit);
  const double step_ms = spread(run.steps, [](auto& m) { return m.step.step_ms; }).median;
  report.json["overlap"] = Json::parse(to_json(overlap, step_ms));
  if (report.shown) print_overlap(overlap, step_ms);
  const auto answers = ask_what_if(communicator, config, replica, overlap, run.ranks.medians());
  report.json["what_if"] = Json::parse(to_json(answers));
  if (report.shown) print_what_if(answers);
}

// A device's host runs ahead of it, so what it notes says nothing of when a bucket is ready.
bool has_bound(const Config& config, const Communicator& communicator) {
  return config.dist.overlap && config.dist.reducer == "bucketed" && communicator.size() > 1 &&
         Allocator::current().memory().on_host();
}

void run(const StepOptions& options, Config config, Communicator& communicator) {
  const int apart = has_bound(config, communicator) ? options.apart : 0;
  if (options.link_mbit > 0 && apart == 0)
    fail(Exit::usage,
         "[bench step] --link-mbit is for the bound of the overlap, which needs several ranks, "
         "train.device cpu, dist.overlap, dist.reducer bucketed and --apart; leave it out");
  const bool first = communicator.rank() == 0;
  if (first) check_json(options.json);
  const bool parameters_travel = config.dist.zero_stage > 0;
  const std::vector<Use> plan = plan_steps(options, apart, parameters_travel);
  config.train.steps = std::ssize(plan);
  Replica replica(config, communicator);
  const MachineLoad load;
  Allocator::current().reset_peak();  // while it is built, it may hold more than ever after
  const Run measured =
      measure(plan, parameters_travel, config.train.dtype(), replica, communicator);
  const std::string busy = load.warning(communicator);
  const MemoryStats memory = replica.memory();

  const FlopsPerToken flops = replica.model().flops_per_token(config.train.seq_len);
  Report report = begin_report(options, config, replica, communicator, flops);
  show_steps(report, measured.steps, flops.total() * static_cast<double>(replica.tokens_per_step()),
             communicator.size());
  show_ranks(report, measured.ranks.medians(), communicator.topology());
  if (apart > 0) show_bound(report, options, config, replica, communicator, measured);
  const auto arrivals = static_cast<int64_t>(communicator.arrival_bytes());
  show_memory(report, memory, max_over_ranks(communicator, arrivals));
  show_plans(report, replica, config.dist);
  report.json["busy_machine"] = busy;
  if (first) print_load(busy);
  if (first && !options.json.empty()) write_json(options.json, report.json.dump(2));
}

constexpr const char* kFooter =
    "The bound is what a step takes if buckets travel one after the other in their order, each\n"
    "as soon as it is ready and the one before it has arrived, at the rate of the link, while\n"
    "backward goes on; the update waits for the last one, forward for gathered parameters. It\n"
    "counts no latency and no processor time for communication, and takes each moment from the\n"
    "slowest rank.\n"
    "Example:\n"
    "  mpirun -np 2 trainer bench step --config configs/bench-small.json "
    "--set train.precision=bf16";

}  // namespace

void add_bench_step(CLI::App& bench, Exit& exit) {
  CLI::App* command =
      bench.add_subcommand("step", "tokens/s, MFU, time split and memory of training steps");
  auto options = std::make_shared<StepOptions>();
  add_config_options(*command, options->config, options->set)->required();
  command->add_option("--steps", options->steps, "steps that count")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command->add_option("--warmup", options->warmup, "steps before them")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  command
      ->add_option("--apart", options->apart,
                   "with several ranks: more steps, in which nothing travels while something is "
                   "computed, for the bound of the overlap; 0: no bound")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  command
      ->add_option("--link-mbit", options->link_mbit,
                   "rate of a host's link in Mbit/s for the bound; 0: what it was in those steps, "
                   "coding and summing included")
      ->check(finite())
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  command->add_option("--json", options->json, "write the figures there, too")->type_name("FILE");
  command->footer(kFooter);
  command->callback([options, &exit] {
    const Config config = read_config(options->config, options->set);
    run_ranks(config, [&](Communicator& communicator) { run(*options, config, communicator); });
    exit = Exit::ok;
  });
}

}  // namespace lockstep
