// Where the time of a step's communication went: what hid behind backward, what the step waited
// for, and whether it waited for data under way or for a rank that was not there yet. Read next:
// step_trace.h.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace lockstep {

struct CommTimes {
  double comm_ms = 0;     // communicating: some bucket was there from all ranks, but not done
  double exposed_ms = 0;  // the compute thread waited for communication or peers
  double wait_ms = 0;     // of exposed_ms, the part in which nothing was communicated: a slower
                          // rank's gradient was awaited

  CommTimes& operator+=(const CommTimes& more) {
    comm_ms += more.comm_ms;
    exposed_ms += more.exposed_ms;
    wait_ms += more.wait_ms;
    return *this;
  }
};

// One operation: the last rank's part was there, the result was there.
struct CommSpan {
  std::chrono::steady_clock::time_point arrived, finished;
};

// Of `spans`, which may overlap (one thread works on them in turn), while the compute thread waited
// from `start` to `end`. On a device they may end later: its host does not wait there.
inline CommTimes comm_times(std::chrono::steady_clock::time_point start,
                            std::chrono::steady_clock::time_point end,
                            std::vector<CommSpan> spans) {
  const auto ms = [](auto from, auto to) {
    return std::max(0.0, std::chrono::duration<double, std::milli>(to - from).count());
  };
  std::sort(spans.begin(), spans.end(),
            [](const CommSpan& a, const CommSpan& b) { return a.arrived < b.arrived; });
  CommTimes times{.exposed_ms = ms(start, end)};
  auto done = std::chrono::steady_clock::time_point::min();  // the spans so far, all of them
  for (const auto& [arrived, finished] : spans) {
    times.comm_ms += ms(std::max(done, arrived), finished);
    times.wait_ms += ms(std::max(done, start), std::min(arrived, end));
    done = std::max(done, finished);
  }
  return times;
}

}  // namespace lockstep
