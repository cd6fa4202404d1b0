// The questions: each is the trace with one thing changed. Read next: dist/overlap_bound.cpp.
#include "examples/bench_what_if.h"

#include <nlohmann/json.hpp>

#include "dist/bench_codec.h"
#include "examples/validate.h"

namespace lockstep {

namespace {

// What is less than that is not worth a line.
constexpr double kNoticeable = 0.05;

class Answers {
 public:
  Answers(const OverlapReport& report, double tokens) : report_(report), tokens_(tokens) {
    add("nothing changed: the bound", report.trace, report.bytes_per_ms);
  }
  void add(const std::string& change, const StepTrace& trace, double bytes_per_ms,
           double extra_ms = 0, double times_tokens = 1) {
    WhatIf answer{change, overlap_bound(trace, bytes_per_ms).step_ms + extra_ms,
                  tokens_ * times_tokens, 0};
    for (const auto& transfer : trace.transfers) answer.link_bytes += transfer.bytes;
    all_.push_back(std::move(answer));
  }
  void add(const std::string& change, const StepTrace& trace) {
    add(change, trace, report_.bytes_per_ms);
  }
  std::vector<WhatIf> take() { return std::move(all_); }

 private:
  const OverlapReport& report_;
  const double tokens_;
  std::vector<WhatIf> all_;
};

// Of one gradient in fp32, by all of a rank's threads, all ranks at once.
double encode_ms(Communicator& communicator, const char* codec, const CodecOptions& options,
                 double bytes) {
  constexpr size_t size = 4 << 20;
  const BenchCommOptions sizes{
      .begin_bytes = size, .end_bytes = size, .iterations = 3, .warmup = 1, .check = false};
  const BenchCodecRow row =
      bench_codec(communicator, {.codec = codec, .codec_options = options}, sizes).front();
  return 1e-3 * row.encode.median_us * bytes / static_cast<double>(row.bytes);
}

std::vector<double> ratios(const std::vector<double>& then, const std::vector<double>& now) {
  std::vector<double> ratio;
  for (size_t b = 0; b < now.size(); ++b) ratio.push_back(now[b] > 0 ? then[b] / now[b] : 1);
  return ratio;
}

// All but `rows`, whose size depends on the data.
void add_codecs(Answers& answers, Communicator& communicator, const Config& config,
                Replica& replica, const OverlapReport& report) {
  const CompressionConfig& compression = config.dist.compression;
  if (config.train.reproducible == "any_world" || compression.codec != "none") return;
  const std::vector<double> now = replica.bucket_link_bytes("none");
  const auto elements = static_cast<double>(replica.model().parameter_count());
  const auto exchanges =
      static_cast<double>(config.dist.reduced() ? accumulation(config, communicator.size()) : 1);
  for (const CodecEntry& entry : codec_table()) {
    const CodecOptions options{.ratio = compression.ratio};
    const double share = replica.compressed_by(entry.name);
    if (entry.make(options)->lossless() || share == 0) continue;
    const std::vector<double> then = replica.bucket_link_bytes(entry.name);
    answers.add(
        fmt::format("dist.compression.codec {}", entry.name),
        with_gradients_scaled(report.trace, ratios(then, now)), report.bytes_per_ms,
        exchanges * encode_ms(communicator, entry.name, options, sizeof(float) * elements * share));
  }
}

}  // namespace

std::vector<WhatIf> ask_what_if(Communicator& communicator, const Config& config, Replica& replica,
                                const OverlapReport& report, std::span<const RankTime> by_rank) {
  const StepTrace& trace = report.trace;
  Answers answers(report, static_cast<double>(replica.tokens_per_step()));
  if (report.several_hosts) answers.add("a link 10 times as fast", trace, 10 * report.bytes_per_ms);
  add_codecs(answers, communicator, config, replica, report);
  // Else a micro batch more is sent, or gathered for, and not only computed.
  if (!config.dist.reduced() && config.dist.zero_stage < 3) {
    const int64_t batch = replica.tokens_per_step() / config.train.seq_len;
    answers.add(fmt::format("train.global_batch {}", 2 * batch), trace, report.bytes_per_ms,
                backward_end_ms(trace), 2);
  }
  const SlowestRank slowest = slowest_rank(by_rank);
  if (slowest.imbalance > 1 + kNoticeable)
    answers.add("no rank slower than the others",
                with_computing_scaled(trace, 1 / slowest.imbalance));
  const RankTime& its = by_rank[slowest.rank];
  if (its.data_ms > kNoticeable * its.ms())
    answers.add("no waiting for data", with_computing_scaled(trace, its.compute_ms / its.ms()));
  return answers.take();
}

void print_what_if(const std::vector<WhatIf>& answers) {
  fmt::print("\n{:<34}{:>10}{:>12}{:>8}{:>14}\n", "what would help, predicted", "step, ms",
             "tokens/s", "x", "MB moved");
  for (const WhatIf& answer : answers)
    fmt::print("{:<34}{:>10.1f}{:>12.0f}{:>8.2f}{:>14.2f}\n", answer.change, answer.step_ms,
               answer.tokens_per_s(), answer.tokens_per_s() / answers[0].tokens_per_s(),
               1e-6 * answer.link_bytes);
  fmt::print(
      "no line for: codec rows, one that would compress nothing, any with any_world or where one "
      "ran; a larger batch where every "
      "micro batch is exchanged or gathered for (accumulate reduced, zero_stage 3)\n");
}

std::string to_json(const std::vector<WhatIf>& answers) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const WhatIf& answer : answers)
    json.push_back({{"change", answer.change},
                    {"step_ms", answer.step_ms},
                    {"tokens_per_s", answer.tokens_per_s()},
                    {"link_bytes", answer.link_bytes}});
  return json.dump();
}

}  // namespace lockstep
