// Both forms of data parallelism against sums computed here, bit for bit, whatever the bucket size,
// the overlap and the world.
#include "dist/data_parallel.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <optional>
#include <random>
#include <thread>

#include "core/ops.h"
#include "core/parallel.h"
#include "tests/dist/worlds.h"

namespace lockstep {
namespace {

// More ranks are mpirun's; the race detector is slow.
const LocalWorlds few = {{1, 2, 3}, {0, 1, 2}};

// In order of use: the first alone exceeds the small last bucket; "b" spans cells and its end is
// ragged; "tied" is used twice; nobody uses "idle".
struct Spec {
  const char* name;
  Shape shape;
};
const Spec kSpecs[] = {{"first", {270'000}}, {"a", {3}},       {"b", {5000}},   {"tied", {33, 11}},
                       {"idle", {7}},        {"c", {64, 200}}, {"scalar", {1}}, {"last", {4096}}};
constexpr size_t kParameters = std::size(kSpecs);
constexpr size_t kTied = 3, kIdle = 4;

// The gradient that use `use` of parameter p contributes on a rank in a micro step: of mixed
// magnitude, so that every order of summation has bits of its own. Repeats after a prime number.
std::vector<float> contributions(int rank, int64_t micro, size_t p, int use) {
  constexpr size_t kPeriod = 1009;
  std::minstd_rand random(static_cast<unsigned>((rank * 31 + micro) * 31 + p) * 31 + use + 1);
  random.discard(10);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(numel(kSpecs[p].shape)));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = i < kPeriod ? std::ldexp(normal(random), static_cast<int>(random() % 16))
                            : values[i - kPeriod];
  return values;
}

std::vector<NamedTensor> make_parameters() {
  std::vector<NamedTensor> parameters;
  for (const Spec& spec : kSpecs) {
    parameters.push_back({spec.name, Tensor::zeros(spec.shape)});
    parameters.back().tensor.set_requires_grad(true);
  }
  return parameters;
}

// A forward and backward pass whose gradients are the contributions. Parameters are used in order,
// so their gradients come in reverse order, as in a model.
void backward_pass(const std::vector<NamedTensor>& parameters, int rank, int64_t micro,
                   std::optional<size_t> poisoned = {}) {
  Tensor loss;
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (p == kIdle) continue;
    for (int use = 0; use < (p == kTied ? 2 : 1); ++use) {
      const Tensor& tensor = parameters[p].tensor;
      std::vector<float> values = contributions(rank, micro, p, use);
      if (poisoned == p) values.back() = INFINITY;
      const Tensor term = sum(mul(tensor, Tensor::from(values, tensor.shape())));
      loss = loss.defined() ? add(loss, term) : term;
    }
  }
  backward(loss);
}

std::vector<float> expected_gradient(int ranks, int64_t micro_steps, size_t p) {
  const auto add = [](std::vector<float>& to, const std::vector<float>& from) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
  };
  std::vector<std::vector<float>> sums;
  for (int r = 0; r < ranks; ++r) {
    sums.push_back(contributions(r, 0, p, 0));
    for (int64_t micro = 1; micro < micro_steps; ++micro)
      add(sums[r], contributions(r, micro, p, 0));
  }
  for (int step = 1; step < ranks; step *= 2)  // neighbours level by level, the odd one carried up
    for (int r = 0; r + step < ranks; r += 2 * step) add(sums[r], sums[r + step]);
  return sums[0];
}

struct Outcome {
  std::vector<std::vector<float>> gradients;
  GradientReport report;
};

Outcome train_step(DataParallel& parallel, const std::vector<NamedTensor>& parameters, int rank,
                   int64_t micro_steps) {
  Outcome outcome;
  for (int64_t micro = 0; micro < micro_steps; ++micro) {
    parallel.begin_micro_step({.index = micro, .count = micro_steps});
    backward_pass(parameters, rank, micro);
  }
  outcome.report = parallel.finish();
  for (size_t p = 0; p < parameters.size(); ++p)
    outcome.gradients.push_back(parallel.gradient(p).to_vector<float>());
  parallel.end_step(true);
  return outcome;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::ranges::equal(a, b, {}, std::bit_cast<uint32_t, float>,
                                                    std::bit_cast<uint32_t, float>);
}

void expect_naive_is_right(const Outcome& naive, int ranks, int64_t micro_steps) {
  double squares = 0;
  for (size_t p = 0; p < kParameters; ++p) {
    const std::vector<float>& found = naive.gradients[p];
    for (const float value : found) squares += static_cast<double>(value) * value;
    if (p == kIdle) {
      EXPECT_TRUE(same_bits(found, std::vector<float>(found.size(), 0.0f)));
    } else if (p != kTied) {  // used twice: the order is autograd's
      EXPECT_TRUE(same_bits(found, expected_gradient(ranks, micro_steps, p))) << kSpecs[p].name;
    }
  }
  EXPECT_NEAR(naive.report.norm / std::sqrt(squares), 1, 1e-9);
  EXPECT_EQ(naive.report.non_finite, "");
}

TEST(DataParallel, BucketedHasTheBitsOfNaive) {
  on_worlds(
      [](Communicator& c) {
        set_num_threads(1);
        for (int64_t micro_steps : {1, 2}) {
          const auto parameters = make_parameters();
          DistConfig config;
          config.reducer = "naive";
          const auto naive = make_data_parallel(config, c, parameters);
          const Outcome expected = train_step(*naive, parameters, c.rank(), micro_steps);
          expect_naive_is_right(expected, c.size(), micro_steps);
          EXPECT_EQ(naive->unused(), std::vector<std::string>{"idle"});

          config.reducer = "bucketed";
          for (const auto& [bucket_mb, overlap] :
               {std::pair(1e-6, true), {0.03, true}, {0.03, false}, {25.0, true}}) {
            config.bucket_mb = bucket_mb;
            config.overlap = overlap;
            const auto own = make_parameters();
            const auto bucketed = make_data_parallel(config, c, own);
            for (int step = 0; step < (overlap ? 2 : 1); ++step) {
              const Outcome found = train_step(*bucketed, own, c.rank(), micro_steps);
              for (size_t p = 0; p < kParameters; ++p)
                EXPECT_TRUE(same_bits(found.gradients[p], expected.gradients[p]))
                    << kSpecs[p].name << ", buckets of " << bucket_mb << " MiB, overlap " << overlap
                    << ", step " << step;
              EXPECT_EQ(found.report.norm, expected.report.norm);
              EXPECT_EQ(found.report.wire_bytes > 0, c.size() > 1);
              EXPECT_GE(found.report.exposed_ms, 0);
              EXPECT_LE(found.report.wait_ms, found.report.exposed_ms);
            }
            EXPECT_EQ(bucketed->unused(), std::vector<std::string>{"idle"});
          }
        }
      },
      few);
}

TEST(DataParallel, ANonFiniteGradientIsNamedOnEveryRank) {
  on_worlds(
      [](Communicator& c) {
        set_num_threads(1);
        for (const char* reducer : {"naive", "bucketed"}) {
          const auto parameters = make_parameters();
          DistConfig config;
          config.reducer = reducer;
          const auto parallel = make_data_parallel(config, c, parameters);
          parallel->begin_micro_step({.index = 0, .count = 1});
          const bool poisoned = c.rank() == c.size() - 1;
          backward_pass(parameters, c.rank(), 0,
                        poisoned ? std::optional<size_t>(2) : std::nullopt);
          const GradientReport report = parallel->finish();
          EXPECT_EQ(report.non_finite, "b");
          EXPECT_FALSE(std::isfinite(report.norm));
        }
      },
      few);
}

// An error between backward and finish() destroys it while the communication thread still works on
// its buckets.
TEST(DataParallel, MayGoWhileItsBucketsAreUnderWay) {
  on_worlds(
      [](Communicator& c) {
        set_num_threads(1);
        for (double bucket_mb : {1e-6, 25.0}) {
          DistConfig config;
          config.bucket_mb = bucket_mb;
          const auto parameters = make_parameters();
          auto parallel = make_data_parallel(config, c, parameters);
          parallel->begin_micro_step({.index = 0, .count = 1});
          if (c.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
          backward_pass(parameters, c.rank(), 0);
          parallel.reset();
          c.barrier();
        }
      },
      few);
}

}  // namespace
}  // namespace lockstep
