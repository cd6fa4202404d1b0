// Transfers one after the other on one link. Read next: memory.h.
#include "dist/overlap_bound.h"

#include <algorithm>

#include "core/median.h"

namespace lockstep {

namespace {

using Values = std::vector<double>;

// All numbers of a trace in one row, and back.
Values values_of(const StepTrace& trace) {
  Values values = {trace.compute_ms, trace.wait_ms};
  for (const auto& event : trace.events) values.push_back(event.at_ms);
  for (const auto& transfer : trace.transfers) values.push_back(transfer.bytes);
  return values;
}

void set_values(StepTrace& trace, const Values& values) {
  auto next = values.begin();
  trace.compute_ms = *next++;
  trace.wait_ms = *next++;
  for (auto& event : trace.events) event.at_ms = *next++;
  for (auto& transfer : trace.transfers) transfer.bytes = *next++;
}

bool same_shape(const StepTrace& a, const StepTrace& b) {
  return std::ranges::equal(
             a.transfers, b.transfers,
             [](auto& x, auto& y) { return x.what == y.what && x.bucket == y.bucket; }) &&
         std::ranges::equal(a.events, b.events, [](auto& x, auto& y) {
           return x.kind == y.kind && x.transfer == y.transfer;
         });
}

}  // namespace

OverlapBound overlap_bound(const StepTrace& trace, double bytes_per_ms) {
  OverlapBound bound;
  bound.transfers.resize(trace.transfers.size());
  double link_free = 0;
  for (const auto& [kind, i, at_ms] : trace.events) {
    OverlapBound::Transfer& transfer = bound.transfers[i];
    const double now = at_ms + bound.exposed_ms;
    if (kind == StepTrace::Kind::ready) {
      const double begin = std::max(now, link_free);
      link_free = begin + trace.transfers[i].bytes / bytes_per_ms;
      transfer = {now, begin, link_free, 0};
    } else if (transfer.end_ms > now) {
      transfer.exposed_ms += transfer.end_ms - now;
      bound.exposed_ms += transfer.end_ms - now;
    }
  }
  bound.step_ms = trace.compute_ms + bound.exposed_ms;
  return bound;
}

StepTrace with_gradients_scaled(StepTrace trace, const std::vector<double>& ratio) {
  for (auto& transfer : trace.transfers)
    if (transfer.what == StepTrace::What::gradients) transfer.bytes *= ratio.at(transfer.bucket);
  return trace;
}

StepTrace with_computing_scaled(StepTrace trace, double factor) {
  trace.compute_ms *= factor;
  for (auto& event : trace.events) event.at_ms *= factor;
  return trace;
}

double backward_end_ms(const StepTrace& trace) {
  double end = 0;
  for (const auto& [kind, i, at_ms] : trace.events)
    if (kind == StepTrace::Kind::ready && trace.transfers[i].what == StepTrace::What::gradients)
      end = at_ms;
  return end;
}

StepTrace median_trace(const std::vector<StepTrace>& steps) {
  check(!steps.empty(), "[overlap] no step was traced");
  StepTrace middle = steps.back();
  std::vector<Values> rows;
  for (const StepTrace& step : steps)
    if (same_shape(step, middle)) rows.push_back(values_of(step));
  Values medians;
  for (size_t i = 0; i < rows[0].size(); ++i) {
    Values column;
    for (const Values& row : rows) column.push_back(row[i]);
    medians.push_back(median(std::move(column)));
  }
  set_values(middle, medians);
  return middle;
}

StepTrace merge_traces(Communicator& communicator, const StepTrace& mine) {
  const Values values = values_of(mine);
  const auto all = gather_values(communicator, values);
  const Topology& where = communicator.topology();
  const size_t times = values.size() - mine.transfers.size();
  Values slowest(values.size());
  std::vector<Values> by_host(where.hosts, Values(mine.transfers.size()));
  for (int r = 0; r < where.size; ++r) {
    const Values& theirs = all[r];
    check(theirs.size() == values.size(),
          "[overlap] {} traced {} values, {} {}: they did other things", where.describe(r),
          theirs.size(), where.describe(where.rank), values.size());
    for (size_t i = 0; i < times; ++i) slowest[i] = std::max(slowest[i], theirs[i]);
    for (size_t i = times; i < theirs.size(); ++i)
      by_host[where.host_of[r]][i - times] += theirs[i];
  }
  for (const Values& host : by_host)
    for (size_t i = 0; i < host.size(); ++i)
      slowest[times + i] = std::max(slowest[times + i], host[i]);
  StepTrace merged = mine;
  set_values(merged, slowest);
  return merged;
}

}  // namespace lockstep
