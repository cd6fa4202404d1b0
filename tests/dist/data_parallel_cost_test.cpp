// What DataParallel says that it cost: bytes by formula, and times that add up.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "core/parallel.h"
#include "dist/local.h"
#include "tests/dist/given_gradients.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

TEST(DataParallelCost, WireBytesAreThoseOfARing) {
  on_worlds([](Communicator& c) {
    const int64_t n = c.size(), elements = n * 2 * cell_size;
    for (const DistConfig& config : {naive(), bucketed(), bucketed(25)}) {
      const auto parameters = parameters_of({elements, elements});
      const auto exchange = make_data_parallel(config, c, parameters);
      exchange->begin_micro_step({.index = 0, .count = 1});
      give(parameters, all_of(parameters));
      const int64_t bytes = 2 * elements * static_cast<int64_t>(sizeof(float));
      EXPECT_EQ(exchange->finish().wire_bytes, 2 * (n - 1) * bytes / n);
    }
  });
}

TEST(CommTimes, OverlapCountsOnceAndOnlyGapsAreWaiting) {
  const auto at = [](int ms) { return Clock::time_point() + std::chrono::milliseconds(ms); };
  const auto expect = [&](std::vector<CommSpan> spans, double comm, double wait) {
    const CommTimes times = comm_times(at(100), at(200), std::move(spans));
    EXPECT_DOUBLE_EQ(times.exposed_ms, 100);
    EXPECT_DOUBLE_EQ(times.comm_ms, comm);
    EXPECT_DOUBLE_EQ(times.wait_ms, wait);
  };
  expect({}, 0, 0);
  expect({{at(10), at(30)}, {at(50), at(60)}}, 30, 0);  // hidden behind backward
  expect({{at(100), at(130)}, {at(120), at(200)}, {at(125), at(128)}}, 100, 0);
  expect({{at(90), at(110)}, {at(150), at(160)}, {at(170), at(200)}}, 60, 50);
  expect({{at(170), at(200)}, {at(50), at(60)}}, 40, 70);    // in whatever order they are given
  expect({{at(150), at(160)}, {at(250), at(300)}}, 60, 90);  // a device goes on after its host
}

TEST(DataParallelCost, TimesAreWithinTheStep) {
  on_worlds(
      [](Communicator& c) {
        for (const DistConfig& config : all_configs()) {
          const auto parameters = parameters_of(std::vector<int64_t>(8, 5000));
          const auto exchange = make_data_parallel(config, c, parameters);
          for (int step = 0; step < 3; ++step) {
            const auto start = Clock::now();
            exchange->begin_micro_step({.index = 0, .count = 1});
            give(parameters, all_of(parameters));
            const GradientReport report = exchange->finish();
            const double ms =
                std::chrono::duration<double, std::milli>(Clock::now() - start).count();
            EXPECT_GE(report.wait_ms, 0);
            EXPECT_GE(report.exposed_ms, report.wait_ms);
            EXPECT_GE(report.comm_ms, 0);
            EXPECT_LE(report.comm_ms + report.wait_ms, ms);
          }
        }
      },
      few);
}

TEST(DataParallelCost, WaitingForASlowRankIsNotCommunication) {
  constexpr double delay_ms = 40;
  for (const DistConfig& config : all_configs()) {
    std::atomic<bool> waiting = false;
    GradientReport reports[2];
    run_local(2, {.timeout_s = 20}, [&](Communicator& c) {
      set_num_threads(1);
      const auto parameters = parameters_of({5, 9000, 77});
      const auto exchange = make_data_parallel(config, c, parameters);
      exchange->begin_micro_step({.index = 0, .count = 1});
      if (c.rank() == 1) {
        waiting.wait(false);
        std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(delay_ms));
      }
      give(parameters, all_of(parameters));
      if (c.rank() == 0) {
        waiting = true;
        waiting.notify_one();
      }
      reports[c.rank()] = exchange->finish();
    });
    // Half: the waiting rank may be interrupted between its word and its clock.
    EXPECT_GE(reports[0].wait_ms, delay_ms / 2);
    EXPECT_GE(reports[0].exposed_ms, reports[0].wait_ms);
    EXPECT_LT(reports[1].wait_ms, reports[0].wait_ms);
  }
}

}  // namespace
}  // namespace lockstep
