// `trainer bench gemm`: the matrix products of a training step, each against the peak measured
// beside it. Read next: gemm_peak.h.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/parallel.h"
#include "core/plural.h"
#include "examples/bench_command.h"
#include "examples/command.h"
#include "examples/config_io.h"
#include "examples/gemm_peak.h"
#include "examples/machine_load.h"
#include "examples/ranks.h"
#include "examples/stopwatch.h"

namespace lockstep {

namespace {

using Json = nlohmann::ordered_json;

struct GemmBenchOptions {
  std::string config, json;
  std::vector<std::string> set;
  double seconds = 0.3;
};

// A weight (n, k) and how often it occurs in the model.
struct Layer {
  const char* name;
  int64_t n, k, count;
};

std::vector<Layer> layers_of(const ModelConfig& m) {
  const int64_t packed = (m.n_head + 2 * m.kv_heads()) * m.head_dim();
  return {{"qkv", packed, m.d_model, m.n_layer},
          {"attention proj", m.d_model, m.d_model, m.n_layer},
          {"mlp up", m.arch == "llama" ? 2 * m.ff() : m.ff(), m.d_model, m.n_layer},
          {"mlp down", m.d_model, m.ff(), m.n_layer},
          {"head", m.vocab_size, m.d_model, 1}};
}

// Best time in ms of out = a b, fp32 out for weight gradients, over `seconds`.
double best_ms(const Tensor& a, const Tensor& b, DType out_type, bool accumulate, double seconds) {
  Tensor out = Tensor::zeros({a.dim(0), b.dim(1)}, out_type);
  double best = 1e300;
  const Stopwatch all;
  for (int i = 0; i < 4 || all.ms() < 1e3 * seconds; ++i) {
    const Stopwatch one;
    backend().gemm(a, b, out, {.accumulate = accumulate});
    backend().stream().synchronize();
    if (i > 0) best = std::min(best, one.ms());
  }
  return best;
}

struct Row {
  std::string what;
  int64_t m, n, k, count;
  double ms, gflops;
};

// Forward x w^T, gradient of x: dy w, gradient of w: dy^T x.
std::vector<Row> measure(const Layer& layer, int64_t tokens, DType dtype, double seconds) {
  const auto [name, n, k, count] = layer;
  Tensor x = Tensor::empty({tokens, k}, dtype), w = Tensor::empty({n, k}, dtype),
         dy = Tensor::empty({tokens, n}, dtype);
  for (Tensor* t : {&x, &w, &dy}) backend().fill(*t, 0.5f);
  const double flop = 2e-6 * static_cast<double>(tokens * n * k);
  std::vector<Row> rows;
  const auto add = [&](const char* pass, int64_t m_, int64_t n_, int64_t k_, double ms) {
    rows.push_back({fmt::format("{} {}", name, pass), m_, n_, k_, count, ms, flop / ms});
  };
  add("forward", tokens, n, k, best_ms(x, w.transposed(), dtype, false, seconds));
  add("dgrad", tokens, k, n, best_ms(dy, w, dtype, false, seconds));
  add("wgrad", n, k, tokens, best_ms(dy.transposed(), x, DType::f32, true, seconds));
  return rows;
}

void run(const GemmBenchOptions& options, const Config& config, Communicator& communicator) {
  check_json(options.json);
  const MachineLoad load;
  const DType dtype = config.train.dtype();
  const int64_t tokens = config.train.micro_batch * config.train.seq_len;
  double peak = measured_gemm_peak(dtype, 1.0), total_ms = 0, total_flop = 0;
  std::vector<Row> rows;
  fmt::print("# products of {} tokens; each runs at least 4 times, then the table comes\n", tokens);
  std::fflush(stdout);
  for (const Layer& layer : layers_of(config.model))
    for (const Row& row : measure(layer, tokens, dtype, options.seconds / 3)) rows.push_back(row);
  peak = std::max(peak, measured_gemm_peak(dtype, 1.0));

  fmt::print("# {}, {}, peak {:.0f} GFLOP/s (best square or MLP-shaped product here)\n",
             plural(num_threads(), "thread"), config.train.precision, peak);
  fmt::print("{:<24}{:>8}{:>8}{:>8}{:>7}{:>10}{:>10}{:>8}\n", "product", "m", "n", "k", "count",
             "ms", "GFLOP/s", "share");
  Json json = {{"precision", config.train.precision},
               {"threads", num_threads()},
               {"peak_gflops", peak},
               {"rows", Json::array()}};
  for (const Row& r : rows) {
    fmt::print("{:<24}{:>8}{:>8}{:>8}{:>7}{:>10.3f}{:>10.0f}{:>8.2f}\n", r.what, r.m, r.n, r.k,
               r.count, r.ms, r.gflops, r.gflops / peak);
    json["rows"].push_back({{"product", r.what},
                            {"m", r.m},
                            {"n", r.n},
                            {"k", r.k},
                            {"count", r.count},
                            {"ms", r.ms},
                            {"gflops", r.gflops}});
    total_ms += r.ms * static_cast<double>(r.count);
    total_flop += r.ms * r.gflops * static_cast<double>(r.count);
  }
  fmt::print("{:<24}{:>41.3f}{:>10.0f}{:>8.2f}\n", "one step", total_ms, total_flop / total_ms,
             total_flop / total_ms / peak);
  json["step_ms"] = total_ms;
  const std::string busy = load.warning(communicator);
  json["busy_machine"] = busy;
  print_load(busy);
  if (!options.json.empty()) write_json(options.json, json.dump(2));
}

}  // namespace

void add_bench_gemm(CLI::App& bench, Exit& exit) {
  CLI::App* command =
      bench.add_subcommand("gemm", "the matrix products of a step, and the peak for MFU");
  auto options = std::make_shared<GemmBenchOptions>();
  add_config_options(*command, options->config, options->set)->required();
  command->add_option("--seconds", options->seconds, "time per layer")
      ->check(finite())
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--json", options->json, "write the figures there, too")->type_name("FILE");
  command->footer(
      "Example:\n  trainer bench gemm --config configs/bench-small.json --set "
      "train.precision=bf16");
  command->callback([options, &exit] {
    const Config config = read_config(options->config, options->set);
    run_ranks(config, [&](Communicator& communicator) {
      if (communicator.size() > 1)
        fail(Exit::usage, "[bench gemm] {} ranks; run one", communicator.size());
      run(*options, config, communicator);
    });
    exit = Exit::ok;
  });
}

}  // namespace lockstep
