// What a step computes and what it sends meanwhile, in the order of the program, on a clock that
// stands still while the computing thread waits: so it can be told how long the step would take on
// a link of any rate. Reducer and placement keep it in every step; it is a few dozen entries. Read
// next: overlap_bound.h.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "dist/communicator.h"

namespace lockstep {

struct StepTrace {
  enum class What { gradients, parameters, norms };
  struct Transfer {
    What what;
    size_t bucket;
    double bytes;  // that this rank sends to other hosts, or to ranks if all share one
  };
  // A transfer has what it needs and may begin, or the program cannot go on before its end.
  enum class Kind { ready, needed };
  struct Event {
    Kind kind;
    size_t transfer;
    double at_ms;
  };

  std::vector<Transfer> transfers;  // in the order in which they got ready
  std::vector<Event> events;        // in the order of the program
  double compute_ms = 0;            // of the whole step
  double wait_ms = 0;  // for transfers: all they took, if nothing was computed meanwhile
};

class StepRecorder {
 public:
  explicit StepRecorder(const Topology& topology) : several_hosts_(topology.hosts > 1) {}

  // Ends a step and begins the next: the parameters it updated are gathered in the time of the one
  // that uses them.
  void next_step() {
    trace_.compute_ms = now_ms();
    last_ = std::exchange(trace_, {});
    begun_ = Clock::now();
    waited_ms_ = 0;
  }
  const StepTrace& last() const { return last_; }

  size_t ready(StepTrace::What what, size_t bucket) {
    const size_t transfer = trace_.transfers.size();
    trace_.transfers.push_back({what, bucket, 0});
    trace_.events.push_back({StepTrace::Kind::ready, transfer, now_ms()});
    return transfer;
  }
  void needed(size_t transfer) {
    trace_.events.push_back({StepTrace::Kind::needed, transfer, now_ms()});
  }

  // All of them.
  void needed_all() {
    for (size_t i = 0; i < trace_.transfers.size(); ++i) needed(i);
  }

  void sent(size_t transfer, const Work::Traffic& traffic) {
    trace_.transfers[transfer].bytes = on_link(traffic);
  }
  // What all transfers of gradients of a bucket in this step sent together.
  void sent_gradients(size_t bucket, const Work::Traffic& traffic) {
    const auto is_one = [&](const StepTrace::Transfer& t) {
      return t.what == StepTrace::What::gradients && t.bucket == bucket;
    };
    const auto count = static_cast<double>(std::ranges::count_if(trace_.transfers, is_one));
    for (auto& transfer : trace_.transfers)
      if (is_one(transfer)) transfer.bytes = on_link(traffic) / count;
  }

  // The bytes of a transfer that was noted as ready are computed only now, by `work`: all that was
  // noted since is put later by the time that takes.
  template <class Work>
  void make_up(size_t transfer, Work&& work) {
    const double before = now_ms();
    work();
    const double took = now_ms() - before;
    auto event = trace_.events.begin();
    while (event->kind != StepTrace::Kind::ready || event->transfer != transfer) ++event;
    for (; event != trace_.events.end(); ++event) event->at_ms += took;
  }

  // Calls what makes the computing thread wait, for a transfer or for other ranks to come.
  template <class Wait>
  void wait_for_transfer(Wait&& wait) {
    trace_.wait_ms += stop_clock(wait);
  }
  template <class Wait>
  void wait_for_ranks(Wait&& wait) {
    stop_clock(wait);
  }

 private:
  using Clock = std::chrono::steady_clock;

  static double ms_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  }
  double now_ms() const { return ms_since(begun_) - waited_ms_; }
  double on_link(const Work::Traffic& traffic) const {
    return static_cast<double>(several_hosts_ ? traffic.to_hosts : traffic.to_ranks);
  }

  template <class Wait>
  double stop_clock(Wait& wait) {
    const auto start = Clock::now();
    wait();
    const double ms = ms_since(start);
    waited_ms_ += ms;
    return ms;
  }

  const bool several_hosts_;
  StepTrace trace_, last_;
  Clock::time_point begun_ = Clock::now();
  double waited_ms_ = 0;
};

}  // namespace lockstep
