// What DataParallel promises beside its sums: what is not finite or missing is named, buckets are
// launched in order, memory is counted once, nothing outlives it, and its times add up. Gradients
// are given: the loss is the sum of parameter * data, so data are the gradient. Sums: see
// data_parallel_bits_test.cpp.
#include "dist/data_parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>

#include "core/backend.h"
#include "core/ops.h"
#include "core/parallel.h"
#include "dist/buckets.h"
#include "dist/local.h"
#include "tests/core/expect_error.h"
#include "tests/dist/worlds.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

const LocalWorlds few = {{1, 2, 3}, {0, 1}};

std::vector<NamedTensor> parameters_of(const std::vector<int64_t>& sizes) {
  std::vector<NamedTensor> parameters;
  for (int64_t size : sizes)
    parameters.push_back(
        {fmt::format("p{}", parameters.size()), Tensor::zeros({size}).set_requires_grad(true)});
  return parameters;
}

// A backward pass in which the parameters of `order` get their gradients, the last one first: all
// elements `value`.
void give(const std::vector<NamedTensor>& parameters, const std::vector<size_t>& order,
          float value = 1) {
  Tensor loss;
  for (size_t i : order) {
    Tensor data = Tensor::empty(parameters[i].tensor.shape());
    backend().fill(data, value);
    const Tensor term = sum(mul(parameters[i].tensor, data));
    loss = loss.defined() ? add(loss, term) : term;
  }
  backward(loss);
}

std::vector<size_t> all_of(const std::vector<NamedTensor>& parameters) {
  std::vector<size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

DistConfig naive() {
  DistConfig config;
  config.reducer = "naive";
  return config;
}

DistConfig bucketed(double bucket_mb = 0.001, bool overlap = true) {
  DistConfig config;
  config.bucket_mb = bucket_mb;
  config.overlap = overlap;
  return config;
}

std::vector<DistConfig> all_configs() {
  return {naive(), bucketed(), bucketed(25), bucketed(0.001, false)};
}

// Every element of gradient i on this rank.
void expect_gradient(const DataParallel& exchange, size_t i, float expected) {
  for (float x : exchange.gradient(i).to_vector<float>())
    ASSERT_EQ(x, expected) << "parameter " << i;
}

TEST(DataParallel, OneRanksNonFiniteGradientIsKnownAndNamedOnAll) {
  on_worlds(
      [](Communicator& c) {
        for (const DistConfig& config : all_configs()) {
          const auto parameters = parameters_of({5, 5000, 300});
          const auto exchange = make_data_parallel(config, c, parameters);
          for (float value : {infinity, -infinity, nan}) {
            exchange->begin_micro_step({.index = 0, .count = 2});
            give(parameters, all_of(parameters));
            exchange->begin_micro_step({.index = 1, .count = 2});
            const bool bad = c.rank() + 1 == c.size();
            give(parameters, {2, 1}, bad ? value : 1);
            const GradientReport report = exchange->finish();
            EXPECT_FALSE(std::isfinite(report.norm));
            EXPECT_EQ(report.non_finite, "p1");
            expect_gradient(*exchange, 0, c.size());
          }
          exchange->begin_micro_step({.index = 0, .count = 1});
          give(parameters, all_of(parameters));
          const GradientReport report = exchange->finish();
          EXPECT_DOUBLE_EQ(report.norm, c.size() * std::sqrt(5305.0)) << "finite again";
          EXPECT_EQ(report.non_finite, "");
        }
      },
      few);
}

// Finite on every rank, but not their sum.
TEST(DataParallel, SumsThatOverflowAreNotFinite) {
  on_worlds(
      [](Communicator& c) {
        for (const DistConfig& config : all_configs()) {
          const auto parameters = parameters_of({7, 9});
          const auto exchange = make_data_parallel(config, c, parameters);
          exchange->begin_micro_step({.index = 0, .count = 1});
          give(parameters, {0, 1}, 3e38f);
          const GradientReport report = exchange->finish();
          EXPECT_EQ(std::isfinite(report.norm), c.size() == 1);
          EXPECT_EQ(report.non_finite, c.size() == 1 ? "" : "p0");
        }
      },
      few);
}

TEST(DataParallel, UnusedParametersCountAsZeroAndAreNamedOnce) {
  using Names = std::vector<std::string>;
  on_worlds(
      [](Communicator& c) {
        for (const DistConfig& config : all_configs()) {
          const auto parameters = parameters_of({5, 5000, 300});
          const auto exchange = make_data_parallel(config, c, parameters);
          for (int step = 0; step < 4; ++step) {
            // p1 in the odd steps only: what those leave behind must not count in the even ones.
            exchange->begin_micro_step({.index = 0, .count = 1});
            give(parameters, step % 2 ? std::vector<size_t>{0, 1, 2} : std::vector<size_t>{0, 2});
            const GradientReport report = exchange->finish();
            expect_gradient(*exchange, 0, c.size());
            expect_gradient(*exchange, 1, step % 2 ? c.size() : 0);
            EXPECT_DOUBLE_EQ(report.norm, c.size() * std::sqrt(step % 2 ? 5305.0 : 305.0));
            EXPECT_EQ(exchange->unused(), Names{"p1"});
          }
        }
      },
      few);
}

TEST(DataParallel, AParameterMayBeUnusedOnSomeRanksOnly) {
  on_worlds(
      [](Communicator& c) {
        for (const DistConfig& config : all_configs()) {
          const auto parameters = parameters_of({5, 5000});
          const auto exchange = make_data_parallel(config, c, parameters);
          for (int step = 0; step < 3; ++step) {
            exchange->begin_micro_step({.index = 0, .count = 1});
            const bool uses = step == 1 || c.rank() == 0;
            give(parameters, uses ? std::vector<size_t>{0, 1} : std::vector<size_t>{0});
            exchange->finish();
            expect_gradient(*exchange, 1, step == 1 ? c.size() : 1);
          }
        }
      },
      few);
}

// A region's parameter that its function does not use this time is reached, but gets nothing.
TEST(DataParallel, AParameterThatIsReachedWithoutAContributionCountsAsZero) {
  on_worlds(
      [](Communicator& c) {
        for (const DistConfig& config : all_configs()) {
          const auto parameters = parameters_of({5, 5});
          const Tensor a = parameters[0].tensor, b = parameters[1].tensor;
          const auto exchange = make_data_parallel(config, c, parameters);
          for (int step = 0; step < 4; ++step) {
            Tensor x = Tensor::zeros({5});
            backend().fill(x, 2);
            exchange->begin_micro_step({.index = 0, .count = 1});
            backward(
                sum(recompute(x.set_requires_grad(true), std::vector{a, b}, [&](const Tensor& x) {
                  return step % 2 ? mul(x, a) : add(mul(x, a), mul(x, b));
                })));
            exchange->finish();
            expect_gradient(*exchange, 0, 2 * c.size());
            expect_gradient(*exchange, 1, step % 2 ? 0 : 2 * c.size());
          }
          EXPECT_TRUE(exchange->unused().empty());
        }
      },
      few);
}

TEST(DataParallel, MicroStepsMayLackABackwardPass) {
  on_worlds(
      [](Communicator& c) {
        for (const DistConfig& config : all_configs()) {
          const auto parameters = parameters_of({5, 5000});
          const auto exchange = make_data_parallel(config, c, parameters);
          for (int missing = 0; missing < 3; ++missing) {
            for (int micro = 0; micro < 3; ++micro) {
              exchange->begin_micro_step({.index = micro, .count = 3});
              if (micro != missing) give(parameters, {0, 1});
            }
            exchange->finish();
            expect_gradient(*exchange, 0, 2 * c.size());
            expect_gradient(*exchange, 1, 2 * c.size());
          }
          exchange->begin_micro_step({.index = 0, .count = 1});
          EXPECT_EQ(exchange->finish().norm, 0.0);
          expect_gradient(*exchange, 1, 0);
        }
      },
      few);
}

TEST(DataParallel, ParametersMayBeEmpty) {
  on_worlds(
      [](Communicator& c) {
        for (const DistConfig& config : all_configs()) {
          const auto parameters = parameters_of({5, 0, 7});
          const auto exchange = make_data_parallel(config, c, parameters);
          for (int step = 0; step < 2; ++step) {
            exchange->begin_micro_step({.index = 0, .count = 1});
            give(parameters, {0, 2});
            EXPECT_DOUBLE_EQ(exchange->finish().norm, c.size() * std::sqrt(12.0));
            EXPECT_EQ(exchange->gradient(1).numel(), 0);
          }
          const auto nothing = make_data_parallel(config, c, {});
          nothing->begin_micro_step({.index = 0, .count = 1});
          EXPECT_EQ(nothing->finish().norm, 0.0);
        }
      },
      few);
}

// With overlap it has written where peers read by the time it is noticed; so without, here.
TEST(DataParallel, RefusesASecondBackwardPassInTheLastMicroStep) {
  for (const std::vector<size_t>& second : {std::vector<size_t>{0, 1}, std::vector<size_t>{1}}) {
    EXPECT_ERROR(run_local(2, {.timeout_s = 20},
                           [&](Communicator& c) {
                             const auto parameters = parameters_of({5, 5});
                             const auto exchange =
                                 make_data_parallel(bucketed(1, false), c, parameters);
                             exchange->begin_micro_step({.index = 0, .count = 1});
                             give(parameters, {0, 1});
                             give(parameters, second);
                           }),
                 Exit::internal,
                 "[data_parallel] a second backward pass reached 'p1' in one micro step; call "
                 "begin_micro_step before each");
  }
}

// Notes what is started, and passes it on.
class Recorder : public Communicator {
 public:
  explicit Recorder(Communicator& inner) : inner_(inner) {}
  std::vector<std::string> events;

  const Topology& topology() const override { return inner_.topology(); }
  std::string backend() const override { return inner_.backend(); }
  Moment enter(Moment now) override { return inner_.enter(now); }
  WindowPtr window(const std::string& name, std::span<const size_t> part_bytes,
                   Layout layout) override {
    return inner_.window(name, part_bytes, layout);
  }
  Work exchange(const WindowPtr& window, Reader reader, std::vector<size_t> used) override {
    return inner_.exchange(window, std::move(reader), std::move(used));
  }
  Work gather(const WindowPtr& window, Reader reader, size_t used) override {
    return inner_.gather(window, std::move(reader), used);
  }
  Work broadcast(const WindowPtr& window, int root, Reader reader) override {
    return inner_.broadcast(window, root, std::move(reader));
  }
  Work all_reduce(const WindowPtr& window, Combine combine) override {
    events.push_back(window->name());
    return inner_.all_reduce(window, std::move(combine));
  }
  Work reclaim(const WindowPtr& window) override { return inner_.reclaim(window); }
  std::vector<std::vector<std::byte>> all_gather_bytes(ByteView mine) override {
    return inner_.all_gather_bytes(mine);
  }
  void call(const std::function<void()>& function) override { inner_.call(function); }

 private:
  Communicator& inner_;
};

// What happens in a step of three parameters with a bucket each, whose gradients come in the order
// opposite to `order`.
std::vector<std::string> events_of(Communicator& c, const DistConfig& config,
                                   const std::vector<size_t>& order) {
  Recorder recorder(c);
  const auto parameters = parameters_of({500, 500, 500});
  for (const auto& [name, tensor] : parameters)
    tensor.leaf().on_grad_ready.push_back([&recorder, name] { recorder.events.push_back(name); });
  const auto exchange = make_data_parallel(config, recorder, parameters);
  for (int64_t micro = 0; micro < 2; ++micro) {
    exchange->begin_micro_step({.index = micro, .count = 2});
    recorder.events.clear();
    give(parameters, order);
  }
  recorder.events.push_back("finish");
  exchange->finish();
  for (size_t i = 0; i < 3; ++i)
    expect_gradient(*exchange, i, 2 * c.size() * std::count(order.begin(), order.end(), i));
  return recorder.events;
}

TEST(DataParallel, BucketsAreLaunchedByIndexInWhateverOrderGradientsArrive) {
  using Events = std::vector<std::string>;
  on_worlds(
      [](Communicator& c) {
        EXPECT_EQ(events_of(c, bucketed(), {0, 1, 2}),
                  (Events{"p2", "bucket 0", "p1", "bucket 1", "p0", "bucket 2", "finish"}));
        EXPECT_EQ(events_of(c, bucketed(), {2, 1, 0}),
                  (Events{"p0", "p1", "p2", "bucket 0", "bucket 1", "bucket 2", "finish"}));
        EXPECT_EQ(events_of(c, bucketed(), {1, 2, 0}),
                  (Events{"p0", "p2", "bucket 0", "p1", "bucket 1", "bucket 2", "finish"}));
        // Without p1, what follows it waits for finish().
        EXPECT_EQ(events_of(c, bucketed(), {0, 2}),
                  (Events{"p2", "bucket 0", "p0", "finish", "bucket 1", "bucket 2"}));
        EXPECT_EQ(events_of(c, bucketed(0.001, false), {0, 1, 2}),
                  (Events{"p2", "p1", "p0", "finish", "bucket 0", "bucket 1", "bucket 2"}));
        EXPECT_EQ(events_of(c, naive(), {0, 1, 2}),
                  (Events{"p2", "p1", "p0", "finish", "p0", "p1", "p2"}));
      },
      few);
}

TEST(DataParallel, RanksMayReceiveTheirGradientsInDifferentOrders) {
  on_worlds(
      [](Communicator& c) {
        const auto parameters = parameters_of({500, 500, 500});
        const auto exchange = make_data_parallel(bucketed(), c, parameters);
        for (int step = 0; step < 6; ++step) {
          std::vector<size_t> order = all_of(parameters);
          for (int i = 0; i < c.rank() + step; ++i)
            std::next_permutation(order.begin(), order.end());
          exchange->begin_micro_step({.index = 0, .count = 1});
          give(parameters, order, static_cast<float>(step));
          exchange->finish();
          for (size_t i = 0; i < 3; ++i) expect_gradient(*exchange, i, step * c.size());
        }
      },
      few);
}

int64_t gradient_bytes() {
  return Allocator::current().stats().current[static_cast<int>(Category::gradients)];
}

// A body in which the rank has an allocator of its own.
void on_worlds_with_allocators(const std::function<void(Communicator&)>& body) {
  on_worlds(
      [&](Communicator& c) {
        Allocator allocator(host_memory());
        AllocatorScope scope(allocator);
        body(c);
      },
      few);
}

TEST(DataParallelMemory, BucketsAreCountedOnce) {
  on_worlds_with_allocators([](Communicator& c) {
    for (double bucket_mb : {0.001, 0.04, 25.0}) {
      const auto parameters = parameters_of({5, 9000, 4096, 77});
      int64_t planned = 0;
      for (const Bucket& bucket :
           plan_buckets(parameters, static_cast<int64_t>(bucket_mb * (1 << 20)), c.size()))
        planned += bucket.elements() * static_cast<int64_t>(sizeof(float));
      const auto exchange = make_data_parallel(bucketed(bucket_mb), c, parameters);
      EXPECT_EQ(gradient_bytes(), planned);
      for (int step = 0; step < 3; ++step) {
        exchange->begin_micro_step({.index = 0, .count = 1});
        give(parameters, all_of(parameters));
        exchange->finish();
        exchange->end_step(true);
        EXPECT_EQ(gradient_bytes(), planned);
      }
    }
  });
}

TEST(DataParallelMemory, StepsAfterTheFirstTakeNothingFromTheSystem) {
  on_worlds_with_allocators([](Communicator& c) {
    for (const DistConfig& config : all_configs()) {
      const auto parameters = parameters_of({5, 9000, 4096, 77});
      const auto exchange = make_data_parallel(config, c, parameters);
      int64_t after_first = 0;
      for (int step = 0; step < 5; ++step) {
        for (int64_t micro = 0; micro < 2; ++micro) {
          exchange->begin_micro_step({.index = micro, .count = 2});
          give(parameters, all_of(parameters));
        }
        exchange->finish();
        exchange->end_step(true);
        const int64_t now = Allocator::current().stats().system_allocations;
        if (step == 0) after_first = now;
        EXPECT_EQ(now, after_first) << "step " << step;
      }
    }
  });
}

TEST(DataParallelMemory, BackwardWritesIntoTheBuckets) {
  on_worlds_with_allocators([](Communicator& c) {
    const auto parameters = parameters_of({5, 9000, 77});
    const auto exchange = make_data_parallel(bucketed(25), c, parameters);
    for (int step = 0; step < 2; ++step) {
      exchange->begin_micro_step({.index = 0, .count = 1});
      give(parameters, all_of(parameters));
      for (size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_EQ(parameters[i].tensor.grad().raw(), exchange->gradient(i).raw());
        EXPECT_EQ(exchange->gradient(i).storage(), exchange->gradient(0).storage());
      }
      exchange->finish();
    }
  });
}

TEST(DataParallelLife, NothingIsLeftBehind) {
  on_worlds_with_allocators([](Communicator& c) {
    const auto parameters = parameters_of({5, 9000, 77});
    for (const DistConfig& config : all_configs()) {
      int others = 0;
      parameters[0].tensor.leaf().on_grad_ready = {[&others] { ++others; }};
      auto exchange = make_data_parallel(config, c, parameters);
      exchange->begin_micro_step({.index = 0, .count = 1});
      give(parameters, all_of(parameters));
      exchange->finish();
      exchange.reset();
      if (config.reducer == "bucketed") {
        EXPECT_EQ(gradient_bytes(), 0);
      }
      for (const auto& [name, tensor] : parameters) {
        EXPECT_FALSE(tensor.leaf().bind_grad);
        EXPECT_EQ(tensor.leaf().on_grad_ready.size(), name == "p0" ? 1u : 0u);
        tensor.leaf().release_grad();
      }
      give(parameters, all_of(parameters), 3);
      EXPECT_EQ(others, 2);
      EXPECT_EQ(parameters[1].tensor.grad().to_vector<float>(), std::vector<float>(9000, 3.0f));
      for (const auto& [name, tensor] : parameters) tensor.leaf().release_grad();
    }
  });
}

// As `exchange = make_data_parallel(..)` does: the old one goes when the new one is there.
TEST(DataParallelLife, ASuccessorTakesOver) {
  on_worlds_with_allocators([](Communicator& c) {
    const auto parameters = parameters_of({5, 9000, 77});
    std::unique_ptr<DataParallel> exchange;
    for (const DistConfig& config : {bucketed(), naive(), bucketed(25), bucketed(0.001, false)}) {
      exchange = make_data_parallel(config, c, parameters);
      for (int step = 1; step < 3; ++step) {
        exchange->begin_micro_step({.index = 0, .count = 1});
        give(parameters, all_of(parameters), step);
        exchange->finish();
        for (size_t i = 0; i < 3; ++i) expect_gradient(*exchange, i, step * c.size());
      }
    }
  });
}

// As when an error ends a step: the communication thread still works on what was launched.
TEST(DataParallelLife, MayEndWithBucketsUnderWay) {
  on_worlds_with_allocators([](Communicator& c) {
    for (int trial = 0; trial < 5; ++trial) {
      const auto parameters = parameters_of({50'000, 50'000});
      auto exchange = make_data_parallel(bucketed(), c, parameters);
      exchange->begin_micro_step({.index = 0, .count = 1});
      if (c.rank() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      give(parameters, all_of(parameters));
      exchange.reset();
      EXPECT_EQ(gradient_bytes(), 0);
    }
  });
}

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
