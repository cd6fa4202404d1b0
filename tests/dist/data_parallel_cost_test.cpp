// What DataParallel says that it cost: bytes by formula, between ranks and between hosts, and times
// that add up.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "core/parallel.h"
#include "dist/local.h"
#include "dist/memory.h"
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

// Two hosts of two ranks. Of a part that is owned on the other host, one rank sends what both have,
// summed: so each sends a quarter of the gradients, and a quarter again of what is gathered. With a
// codec each sends both parts that are owned there, at half the size, because bf16 is not summed.
TEST(DataParallelCost, GradientsCrossToAnotherHostOnceInEveryStage) {
  const auto host_bytes_of = [](Communicator& c, const DistConfig& config, SumOrder order) {
    const int64_t elements = 8 * cell_size, quarter = 2 * elements;  // two matrices, 4 bytes
    std::vector<NamedTensor> parameters;
    for (const char* name : {"a", "b"})
      parameters.push_back({name, Tensor::zeros({elements / 64, 64}).set_requires_grad(true)});
    const auto exchange = make_data_parallel(config, c, parameters, {}, order);
    GradientReport report;
    for (int64_t step = 1; step <= 2; ++step) {  // parameters are counted in the step after
      for (int64_t micro = 0; micro < 2; ++micro) {
        exchange->begin_micro_step({.step = step, .index = micro, .count = 2});
        exchange->acquire(0);
        give(parameters, all_of(parameters));
        exchange->release(0);
      }
      report = exchange->finish();
      exchange->end_step(true);
    }
    // Everybody is shown my part of the parameters; it crosses once.
    return static_cast<double>(report.host_bytes - report.param_bytes / (c.size() - 1)) /
           static_cast<double>(quarter);
  };
  on_worlds(
      [&](Communicator& c) {
        for (int stage = 0; stage <= 3; ++stage)
          for (double bucket_mb : {0.001, 25.0})
            for (const char* accumulate : {"local", "reduced"})
              for (SumOrder order : {SumOrder::same_world, SumOrder::any_world}) {
                DistConfig config = bucketed(bucket_mb);
                config.zero_stage = stage;
                config.accumulate = accumulate;
                const double exchanges = config.reduced() ? 2 : 1, gathered = stage == 0 ? 1 : 0;
                EXPECT_EQ(host_bytes_of(c, config, order), exchanges + gathered)
                    << "stage " << stage << ", accumulate " << accumulate;
                config.compression.codec = "bf16";
                config.compression.min_elements = 0;
                if (order == SumOrder::any_world) continue;  // takes no codec
                EXPECT_EQ(host_bytes_of(c, config, order), exchanges + gathered / 2)
                    << "bf16, stage " << stage << ", accumulate " << accumulate;
              }
      },
      {{4}, {2}});
}

// From other hosts; on devices, from all ranks.
TEST(DataParallelCost, MemoryForWhatArrivesIsThatOfTheFormula) {
  const auto compare = [](Communicator& c, const DistConfig& config) {
    const int64_t rows = c.size() * 3 * cell_size / 64;
    std::vector<NamedTensor> parameters;
    for (const char* name : {"a", "b", "c"})
      parameters.push_back({name, Tensor::zeros({rows, 64}).set_requires_grad(true)});
    const MemoryBytes plan = memory_plan(
        config, {.parameters = parameters, .unit_of = {}, .early = {}, .on_device = on_devices()},
        c.topology(), SumOrder::same_world, 1, 8);
    c.barrier();  // it has memory of its own
    const size_t before = c.arrival_bytes();
    const auto exchange = make_data_parallel(config, c, parameters);
    for (int64_t step = 1; step <= 2; ++step) {
      exchange->begin_micro_step({.step = step, .index = 0, .count = 1});
      exchange->acquire(0);
      give(parameters, all_of(parameters));
      exchange->release(0);
      exchange->finish();
      exchange->end_step(true);
    }
    EXPECT_EQ(plan.arrivals > 0, c.topology().hosts > 1 || on_devices());
    EXPECT_NEAR(static_cast<double>(c.arrival_bytes() - before), plan.arrivals,
                0.01 * plan.arrivals)
        << "stage " << config.zero_stage << ", " << config.compression.codec;
  };
  for (int stage = 0; stage <= 3; ++stage)
    for (const char* codec : {"none", "bf16"}) {
      DistConfig config = bucketed(0.2);
      config.zero_stage = stage;
      config.compression.codec = codec;
      config.compression.min_elements = 0;
      on_worlds([&](Communicator& c) { compare(c, config); }, {{2, 4}, {0, 1, 2}});
    }
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
