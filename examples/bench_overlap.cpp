// The table and the JSON of the bound, from the traces of all ranks. Read next:
// dist/overlap_bound.cpp, which does the arithmetic.
#include "examples/bench_overlap.h"

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace lockstep {

namespace {

constexpr double kBytesPerMsOfMbit = 1e6 / 8 / 1e3;
// A step cannot be shorter than its bound; what is, by more than this, had other conditions.
constexpr double kComparable = 0.95;

const char* name_of(StepTrace::What what) {
  switch (what) {
    case StepTrace::What::gradients:
      return "gradients";
    case StepTrace::What::parameters:
      return "parameters";
    case StepTrace::What::norms:
      break;
  }
  return "norms";
}

// Every bucket of gradients; of the rest, which with sharded parameters is much, what is in the
// way.
bool is_worth_a_line(const OverlapReport& report, size_t i) {
  return report.trace.transfers[i].what == StepTrace::What::gradients ||
         report.bound.transfers[i].exposed_ms > 0.01 * report.bound.step_ms;
}

}  // namespace

OverlapReport report_overlap(Communicator& communicator, const std::vector<StepTrace>& apart,
                             double link_mbit) {
  OverlapReport report;
  report.trace = merge_traces(communicator, median_trace(apart));
  for (const auto& transfer : report.trace.transfers) report.bytes += transfer.bytes;
  report.measured = link_mbit == 0;
  report.several_hosts = communicator.topology().hosts > 1;
  report.bytes_per_ms =
      report.measured ? report.bytes / report.trace.wait_ms : link_mbit * kBytesPerMsOfMbit;
  report.bound = overlap_bound(report.trace, report.bytes_per_ms);
  return report;
}

void print_overlap(const OverlapReport& report, double step_ms) {
  const double compute = report.trace.compute_ms, alone = report.trace.wait_ms;
  const OverlapBound& bound = report.bound;
  fmt::print("\noverlap, ms\n");
  fmt::print("{:<22}{:>14.1f}\n", "computing alone", compute);
  fmt::print("{:<22}{:>14.1f}   {:.1f} MB{}; the bound is at {:.0f} Mbit/s, {}\n",
             "communicating alone", alone, 1e-6 * report.bytes,
             report.several_hosts ? " from a host" : ", all ranks together, within the host",
             report.bytes_per_ms / kBytesPerMsOfMbit,
             report.measured ? "the rate of that" : "as given");
  fmt::print("{:<22}{:>14.1f}\n", "one after the other", compute + alone);
  fmt::print(
      "{:<22}{:>14.1f}   computing + {:.1f} that nothing hides; the link is busy for {:.0f} %\n",
      "bound of the schedule", bound.step_ms, bound.exposed_ms,
      100 * report.bytes / report.bytes_per_ms / bound.step_ms);
  fmt::print("{:<22}{:>14.1f}   {:.3f} x the bound\n", "measured step", step_ms,
             step_ms / bound.step_ms);
  if (step_ms < kComparable * bound.step_ms)
    fmt::print(
        "the steps without overlap, from which the bound comes, were slower than those with it: a "
        "busy machine; with more --apart their middle is steadier\n");
  fmt::print("\n{:<22}{:>14}{:>11}{:>11}{:>11}{:>11}\n", "in the bound, ms", "MB", "ready",
             "begins", "ends", "exposed");
  for (size_t i = 0; i < bound.transfers.size(); ++i) {
    if (!is_worth_a_line(report, i)) continue;
    const auto& [what, bucket, bytes] = report.trace.transfers[i];
    const auto& [ready, begin, end, exposed] = bound.transfers[i];
    fmt::print("{:<22}{:>14.2f}{:>11.1f}{:>11.1f}{:>11.1f}{:>11.1f}\n",
               fmt::format("{} {}", name_of(what), bucket), 1e-6 * bytes, ready, begin, end,
               exposed);
  }
}

std::string to_json(const OverlapReport& report, double step_ms) {
  nlohmann::ordered_json json = {{"compute_alone_ms", report.trace.compute_ms},
                                 {"comm_alone_ms", report.trace.wait_ms},
                                 {"link_mbit", report.bytes_per_ms / kBytesPerMsOfMbit},
                                 {"link_bytes", report.bytes},
                                 {"bound_ms", report.bound.step_ms},
                                 {"exposed_ms", report.bound.exposed_ms},
                                 {"step_ms", step_ms},
                                 {"over_bound", step_ms / report.bound.step_ms}};
  for (size_t i = 0; i < report.bound.transfers.size(); ++i) {
    const auto& [what, bucket, bytes] = report.trace.transfers[i];
    const auto& [ready, begin, end, exposed] = report.bound.transfers[i];
    json["transfers"].push_back({{"what", name_of(what)},
                                 {"bucket", bucket},
                                 {"bytes", bytes},
                                 {"ready_ms", ready},
                                 {"begin_ms", begin},
                                 {"end_ms", end},
                                 {"exposed_ms", exposed}});
  }
  return json.dump();
}

}  // namespace lockstep
