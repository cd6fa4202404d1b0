// What DataParallel promises beside its sums: what is not finite or missing is named, and buckets
// are launched in order. Sums: see data_parallel_bits_test.cpp. Memory, life and cost: see
// data_parallel_life_test.cpp and data_parallel_cost_test.cpp.
#include "dist/data_parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "dist/local.h"
#include "tests/core/expect_error.h"
#include "tests/dist/given_gradients.h"

namespace lockstep {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

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

}  // namespace
}  // namespace lockstep
