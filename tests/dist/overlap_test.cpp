// The bound of a step against schedules computed by hand, and what steps record for it.
#include "dist/overlap_bound.h"

#include <gtest/gtest.h>

#include <thread>

#include "dist/data_parallel.h"
#include "dist/local.h"
#include "dist/memory.h"
#include "tests/core/expect_error.h"
#include "tests/dist/small_model.h"

namespace lockstep {
namespace {

using What = StepTrace::What;
using Kind = StepTrace::Kind;
constexpr Kind ready = Kind::ready, needed = Kind::needed;

StepTrace trace(std::vector<double> bytes, std::vector<StepTrace::Event> events,
                double compute_ms) {
  StepTrace t;
  for (size_t i = 0; i < bytes.size(); ++i) t.transfers.push_back({What::gradients, i, bytes[i]});
  t.events = std::move(events);
  t.compute_ms = compute_ms;
  return t;
}

void expect_transfer(const OverlapBound& bound, size_t i, double begin, double end,
                     double exposed) {
  EXPECT_DOUBLE_EQ(bound.transfers[i].begin_ms, begin) << i;
  EXPECT_DOUBLE_EQ(bound.transfers[i].end_ms, end) << i;
  EXPECT_DOUBLE_EQ(bound.transfers[i].exposed_ms, exposed) << i;
}

// Three buckets of 100, 300 and 50 bytes that are ready at 10, 20 and 60; backward ends at 60, the
// update takes 5 more.
StepTrace three_buckets() {
  return trace({100, 300, 50},
               {{ready, 0, 10},
                {ready, 1, 20},
                {ready, 2, 60},
                {needed, 0, 60},
                {needed, 1, 60},
                {needed, 2, 60}},
               65);
}

TEST(OverlapBound, AFastLinkHidesAllButTheLastBucket) {
  const OverlapBound bound = overlap_bound(three_buckets(), 20);
  expect_transfer(bound, 0, 10, 15, 0);
  expect_transfer(bound, 1, 20, 35, 0);
  expect_transfer(bound, 2, 60, 62.5, 2.5);
  EXPECT_DOUBLE_EQ(bound.exposed_ms, 2.5);
  EXPECT_DOUBLE_EQ(bound.step_ms, 67.5);
}

TEST(OverlapBound, ASlowLinkIsBusyFromTheFirstBucketOn) {
  const OverlapBound bound = overlap_bound(three_buckets(), 5);
  expect_transfer(bound, 0, 10, 30, 0);
  expect_transfer(bound, 1, 30, 90, 30);
  expect_transfer(bound, 2, 90, 100, 10);
  EXPECT_DOUBLE_EQ(bound.step_ms, 10 + 450 / 5.0 + 5);
}

TEST(OverlapBound, NothingToSendIsNoTime) {
  EXPECT_DOUBLE_EQ(overlap_bound(trace({}, {}, 42), 1).step_ms, 42);
  EXPECT_DOUBLE_EQ(overlap_bound(trace({0}, {{ready, 0, 40}, {needed, 0, 40}}, 42), 1).step_ms, 42);
}

// Gathered parameters: two transfers from the start on, which forward needs at 2 and 10. What
// forward has waited shifts all that follows, so the bucket is ready at 28 + 3.
TEST(OverlapBound, WhatIsNeededEarlyDelaysWhatFollows) {
  const OverlapBound bound = overlap_bound(trace({50, 60, 80},
                                                 {{ready, 0, 0},
                                                  {ready, 1, 0},
                                                  {needed, 0, 2},
                                                  {needed, 1, 10},
                                                  {ready, 2, 28},
                                                  {needed, 2, 30}},
                                                 31),
                                           10);
  expect_transfer(bound, 0, 0, 5, 3);
  expect_transfer(bound, 1, 5, 11, 0);
  expect_transfer(bound, 2, 31, 39, 6);
  EXPECT_DOUBLE_EQ(bound.transfers[2].ready_ms, 31);
  EXPECT_DOUBLE_EQ(bound.step_ms, 40);
}

// With one window for both, the second bucket cannot begin to be sent before the first has gone.
TEST(OverlapBound, ASharedWindowStopsBackward) {
  const OverlapBound bound = overlap_bound(
      trace({200, 100}, {{ready, 0, 10}, {needed, 0, 15}, {ready, 1, 15}, {needed, 1, 20}}, 20),
      10);
  expect_transfer(bound, 0, 10, 30, 15);
  expect_transfer(bound, 1, 30, 40, 5);
  EXPECT_DOUBLE_EQ(bound.step_ms, 40);
}

TEST(OverlapBound, OfAnotherCodecOrAnotherProcessor) {
  const StepTrace step = three_buckets();
  EXPECT_DOUBLE_EQ(backward_end_ms(step), 60);
  // 10, 150 and 50 bytes: the link is free when the last one is ready.
  const OverlapBound packed = overlap_bound(with_gradients_scaled(step, {0.1, 0.5, 1}), 5);
  expect_transfer(packed, 0, 10, 12, 0);
  expect_transfer(packed, 1, 20, 50, 0);
  expect_transfer(packed, 2, 60, 70, 10);
  // Ready at 5, 10 and 30, the end at 32.5.
  const OverlapBound faster = overlap_bound(with_computing_scaled(step, 0.5), 5);
  expect_transfer(faster, 2, 85, 95, 10);
  EXPECT_DOUBLE_EQ(faster.step_ms, 95 + 2.5);
}

TEST(MedianTrace, IsTakenValueByValueOverStepsOfOneKind) {
  std::vector<StepTrace> steps;
  steps.push_back(trace({1}, {{ready, 0, 999}}, 999));  // the first step of a run
  for (const double at : {3.0, 1.0, 2.0})
    steps.push_back(trace({10 * at, 1}, {{ready, 0, at}, {ready, 1, 10 - at}}, 100 * at));
  const StepTrace middle = median_trace(steps);
  EXPECT_EQ(middle.events[0].at_ms, 2);
  EXPECT_EQ(middle.events[1].at_ms, 8);
  EXPECT_EQ(middle.transfers[0].bytes, 20);
  EXPECT_EQ(middle.compute_ms, 200);
  EXPECT_ERROR(median_trace({}), Exit::internal, "[overlap] no step was traced");
}

// Rank r is later by r, and sends 10 more.
TEST(MergeTraces, TakesTheSlowestRankAndTheBusiestHost) {
  for (const int ranks_per_host : {0, 2})
    run_local(3, {.ranks_per_host = ranks_per_host}, [&](Communicator& c) {
      const double r = c.rank();
      const StepTrace merged = merge_traces(c, trace({10 + 10 * r}, {{ready, 0, 5 + r}}, 9 - r));
      EXPECT_EQ(merged.events[0].at_ms, 7);
      EXPECT_EQ(merged.compute_ms, 9);
      EXPECT_EQ(merged.transfers[0].bytes, ranks_per_host == 0 ? 60 : 30);
    });
}

TEST(MergeTraces, RefusesRanksThatDidOtherThings) {
  run_local(2, {}, [](Communicator& c) {
    const StepTrace mine = trace(std::vector<double>(c.rank() + 1, 1), {}, 1);
    EXPECT_ERROR(merge_traces(c, mine), Exit::internal, "they did other things");
    c.barrier();
  });
}

TEST(StepRecorder, TheClockStandsStillWhileTheProgramWaits) {
  const auto sleep = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  StepRecorder recorder({});
  recorder.ready(What::gradients, 0);
  recorder.wait_for_transfer(sleep);
  recorder.wait_for_ranks(sleep);
  recorder.needed(0);
  recorder.make_up(0, sleep);
  recorder.sent(0, {.to_ranks = 7, .to_hosts = 3});
  recorder.next_step();
  const StepTrace& step = recorder.last();
  EXPECT_GE(step.wait_ms, 20);
  EXPECT_GE(step.compute_ms, 20) << "what is made up for is computed";
  EXPECT_GE(step.events[0].at_ms, 20) << "... before the transfer";
  EXPECT_GE(step.events[1].at_ms, step.events[0].at_ms);
  EXPECT_LE(step.events[1].at_ms, step.compute_ms);
  EXPECT_EQ(step.transfers[0].bytes, 7) << "all ranks share a host";
}

struct Step {
  StepTrace trace;
  GradientReport report;
};

Step last_of_three_steps(Communicator& c, const DistConfig& config, bool overlap) {
  const SmallModel model;
  const auto parallel = make_data_parallel(config, c, model.parameters(), {0, 1, 1, 2, 2, 3});
  parallel->set_overlap(overlap);
  GradientReport report;
  for (int64_t step = 1; step <= 3; ++step) {
    for (int64_t micro = 0; micro < 2; ++micro) {
      parallel->begin_micro_step({.step = step, .index = micro, .count = 2});
      for (size_t unit = 0; unit < 4; ++unit) parallel->acquire(unit);
      backward(model.loss(c.rank(), step, micro));
      for (size_t unit = 0; unit < 4; ++unit) parallel->release(unit);
    }
    report = parallel->finish();
    parallel->end_step(true);
  }
  return {parallel->trace(), report};
}

// In every stage, with overlap and without: the same transfers, all of the bytes that were sent,
// each ready before it is needed.
TEST(StepTrace, OfTrainingStepsHoldsEveryTransfer) {
  for (int stage : {0, 1, 2, 3})
    for (const char* codec : {"none", "int8"})
      run_local(2, {.ranks_per_host = 1}, [&](Communicator& c) {
        DistConfig config;
        config.zero_stage = stage;
        config.bucket_mb = 0.02;
        config.compression.codec = codec;
        if (config.compression.codec != "none") config.compression.min_elements = 100;
        const Step with = last_of_three_steps(c, config, true),
                   apart = last_of_three_steps(c, config, false);
        SCOPED_TRACE(fmt::format("stage {}, {}, rank {}", stage, codec, c.rank()));
        EXPECT_EQ(with.trace.transfers.size(), apart.trace.transfers.size());
        EXPECT_EQ(with.trace.events.size(), apart.trace.events.size());
        double gradients = 0, parameters = 0;
        for (const auto& transfer : apart.trace.transfers) {
          if (transfer.what == What::gradients) gradients += transfer.bytes;
          if (transfer.what == What::parameters) parameters += transfer.bytes;
        }
        EXPECT_NEAR(gradients, static_cast<double>(apart.report.wire_bytes), 1);
        EXPECT_NEAR(parameters, static_cast<double>(apart.report.param_bytes), 1);
        EXPECT_EQ(apart.report.host_bytes, apart.report.wire_bytes + apart.report.param_bytes);
        std::vector<bool> is_ready(apart.trace.transfers.size());
        double before = 0;
        for (const auto& event : apart.trace.events) {
          if (event.kind == ready) is_ready[event.transfer] = true;
          EXPECT_TRUE(is_ready[event.transfer]);
          EXPECT_GE(event.at_ms, before);
          before = event.at_ms;
        }
        EXPECT_GE(apart.trace.compute_ms, before);
        EXPECT_GT(apart.trace.wait_ms, 0);
      });
}

std::vector<double> gradient_bytes_by_bucket(const StepTrace& trace) {
  std::vector<double> bytes;
  for (const auto& transfer : trace.transfers) {
    if (transfer.what != What::gradients) continue;
    bytes.resize(std::max(bytes.size(), transfer.bucket + 1));
    bytes[transfer.bucket] += transfer.bytes;
  }
  return bytes;
}

// What `bench step` predicts for another codec stands on this formula.
TEST(StepTrace, HasTheBytesOfTheFormula) {
  for (int ranks_per_host : {0, 1, 2})
    for (int stage : {0, 1, 2})
      for (const char* codec : {"none", "int8", "sign"})
        run_local(4, {.ranks_per_host = ranks_per_host}, [&](Communicator& c) {
          DistConfig config;
          config.zero_stage = stage;
          config.bucket_mb = 0.02;
          config.compression.codec = codec;
          if (config.compression.codec != "none") config.compression.min_elements = 100;
          const Step step = last_of_three_steps(c, config, false);
          const SmallModel model;
          const std::vector<double> formula = bucket_link_bytes(
              config,
              {.parameters = model.parameters(), .unit_of = {0, 1, 1, 2, 2, 3}, .early = {}},
              c.topology(), SumOrder::same_world, 2);
          const std::vector<double> measured =
              gradient_bytes_by_bucket(merge_traces(c, step.trace));
          SCOPED_TRACE(fmt::format("{} per host, stage {}, {}", ranks_per_host, stage, codec));
          ASSERT_EQ(measured.size(), formula.size());
          for (size_t b = 0; b < formula.size(); ++b) EXPECT_NEAR(measured[b], formula[b], 1) << b;
        });
}

TEST(StepTrace, TheNaiveFormHasNoOverlap) {
  run_local(1, {}, [](Communicator& c) {
    DistConfig config;
    config.reducer = "naive";
    const SmallModel model;
    const auto naive = make_data_parallel(config, c, model.parameters());
    naive->set_overlap(false);
    EXPECT_ERROR(naive->set_overlap(true), Exit::internal,
                 "the naive form sends nothing while something is computed");
    EXPECT_TRUE(naive->trace().events.empty());
  });
}

}  // namespace
}  // namespace lockstep
