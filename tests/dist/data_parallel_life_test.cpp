// The memory of DataParallel is counted once and taken once, and nothing outlives it.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "dist/buckets.h"
#include "tests/dist/given_gradients.h"

namespace lockstep {
namespace {

int64_t gradient_bytes() {
  return Allocator::current().stats().current[static_cast<int>(Category::gradients)];
}

// A body in which the rank has an allocator of its own.
void on_worlds_with_allocators(const std::function<void(Communicator&)>& body) {
  on_worlds(
      [&](Communicator& c) {
        Allocator allocator(Allocator::current().memory());
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

}  // namespace
}  // namespace lockstep
