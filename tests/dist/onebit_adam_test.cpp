// 1-bit Adam as parts of the one pipeline (every rank's momentum, powers of two, a codec, error
// feedback) against the algorithm written down in double precision, with codec sign; other codecs
// in all stages; and what it learns beside AdamW.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "dist/data_parallel.h"
#include "optim/optimizer.h"
#include "tests/dist/small_model.h"
#include "tests/dist/worlds.h"

namespace lockstep {
namespace {

constexpr int64_t rows = 2, columns = 2500, n = rows * columns;  // a cell and a part of one
constexpr int64_t never = 40;  // elements that get no gradient while the variance moves
constexpr int64_t warmup = 8, steps = 20;
constexpr double lr = 0.01, decay = 0.1, eps = 1e-8;
const double beta1 = 0.9f, beta2 = 0.95f;  // as the kernel has them

std::vector<float> gradient(int rank, int64_t step) {
  std::mt19937 random(static_cast<uint32_t>(100 * step + rank));
  std::normal_distribution<float> normal(0.1f);
  std::vector<float> g(n);
  for (int64_t i = 0; i < n; ++i) g[i] = normal(random);
  if (step <= warmup) std::fill_n(g.begin(), never, 0.0f);
  return g;
}

using Values = std::vector<double>;

// The sign of every element times the mean magnitude of its cell, all of x / unit * unit; `rest`
// gets what that leaves out. A unit of 0 sends nothing and leaves nothing.
Values compressed(Values x, const Values& unit, Values& rest) {
  Values sent(n);
  for (int64_t i = 0; i < n; ++i) x[i] = unit[i] > 0 ? x[i] / unit[i] : 0;
  for (int64_t begin = 0; begin < n; begin += cell_size) {
    const int64_t end = std::min(n, begin + cell_size);
    double mean = 0;
    for (int64_t i = begin; i < end; ++i)
      mean += std::fabs(x[i]) / static_cast<double>(end - begin);
    for (int64_t i = begin; i < end; ++i) sent[i] = std::copysign(mean, x[i]);
  }
  for (int64_t i = 0; i < n; ++i) {
    rest[i] = (x[i] - sent[i]) * unit[i];
    sent[i] *= unit[i];
  }
  return sent;
}

// Powers of two near the roots.
Values units(const Values& v) {
  Values unit(n);
  for (int64_t i = 0; i < n; ++i)
    if (v[i] > 0) unit[i] = std::exp2(std::floor((std::floor(std::log2(v[i])) + 1) / 2));
  return unit;
}

// As OnebitAdam and DataParallel say in prose.
Values trained_in_doubles(int ranks) {
  Values x(n, 0.5), m(n), v(n), owner_rest(n), unit;
  std::vector<Values> momenta(ranks, Values(n)), rests(ranks, Values(n));
  for (int64_t t = 1; t <= steps; ++t) {
    const bool frozen = t > warmup;
    Values sum(n);
    for (int r = 0; r < ranks; ++r) {
      const std::vector<float> g = gradient(r, t);
      Values mine(g.begin(), g.end());
      for (int64_t i = 0; i < n; ++i) momenta[r][i] = beta1 * momenta[r][i] + (1 - beta1) * g[i];
      if (frozen) {
        for (int64_t i = 0; i < n; ++i) mine[i] = momenta[r][i] + rests[r][i];
        mine = compressed(mine, unit, rests[r]);
      }
      for (int64_t i = 0; i < n; ++i) sum[i] += mine[i];
    }
    if (frozen) {
      for (int64_t i = 0; i < n; ++i) sum[i] += owner_rest[i];
      sum = compressed(sum, unit, owner_rest);
    }
    for (int64_t i = 0; i < n; ++i) {
      m[i] = frozen ? sum[i] : beta1 * m[i] + (1 - beta1) * sum[i];
      if (!frozen) v[i] = beta2 * v[i] + (1 - beta2) * sum[i] * sum[i];
      x[i] -= lr * decay * x[i];
      if (v[i] == 0) continue;
      const double root = std::sqrt(v[i] / (1 - std::pow(beta2, std::min(t, warmup))));
      x[i] -= lr * m[i] / (1 - std::pow(beta1, t)) / (root + eps);
    }
    if (t == warmup) unit = units(v);
  }
  return x;
}

OptimConfig onebit_adam() {
  OptimConfig config;
  config.name = "onebit_adam";
  config.weight_decay = decay;
  return config;
}

DistConfig by_signs(int stage, int64_t warmup_steps) {
  DistConfig config;
  config.zero_stage = stage;
  config.bucket_mb = 0.01;
  config.compression.codec = "sign";
  config.compression.min_elements = 100;
  config.compression.warmup_steps = warmup_steps;
  return config;
}

// loss(step) on this rank, backward, update: `steps` times.
void train(Communicator& c, const DistConfig& dist, const OptimConfig& optim, int64_t until,
           const std::vector<NamedTensor>& parameters, double rate,
           const std::function<Tensor(int64_t)>& loss, const std::function<void()>& at_end = {}) {
  const bool onebit = optim.name == "onebit_adam";
  const auto exchange = make_data_parallel(dist, c, parameters, {}, SumOrder::same_world, {},
                                           onebit ? optim.betas[0] : 0);
  const auto optimizer = make_optimizer(optim, exchange->shards(), dist.compression.warmup_steps);
  for (int64_t t = 1; t <= until; ++t) {
    StepScalars scalars;
    scalars.lr = static_cast<float>(rate);
    scalars.step = static_cast<int32_t>(t);
    optimizer->prepare(scalars, t);
    exchange->begin_micro_step({.step = t});
    exchange->acquire(0);
    backward(loss(t));
    exchange->release(0);
    exchange->finish();
    for (size_t i = 0; i < exchange->shards().size(); ++i)
      optimizer->step(i, exchange->gradient(i), scalars);
    exchange->end_step(true);
    if (onebit && t == dist.compression.warmup_steps)
      exchange->precondition(optimizer->second_moments());
  }
  exchange->acquire(0);
  at_end();
  exchange->release(0);
}

// What x [rows, columns] becomes.
std::vector<float> trained(Communicator& c, const DistConfig& dist) {
  Tensor x = Tensor::from(std::vector<float>(n, 0.5f), {rows, columns});
  x.set_requires_grad(true);
  std::vector<float> got;
  train(
      c, dist, onebit_adam(), steps, {{"x", x}}, lr,
      [&](int64_t t) {
        return sum(mul(x, Tensor::from(gradient(c.rank(), t), {rows, columns})));
      },
      [&] { got = x.to_vector<float>(); });
  return got;
}

TEST(OnebitAdam, IsWhatItSaysInEveryStage) {
  on_worlds(
      [](Communicator& c) {
        const Values want = trained_in_doubles(c.size());
        const std::vector<float> first = trained(c, by_signs(0, warmup));
        for (int stage = 1; stage <= 3; ++stage)
          EXPECT_EQ(trained(c, by_signs(stage, warmup)), first)
              << "stage " << stage << " has bits of its own";
        // Twenty steps of at most about lr each, and what they started from, in fp32.
        for (int64_t i = 0; i < n; ++i)
          ASSERT_NEAR(first[i], want[i], 64 * 0x1p-24 * (1 + std::fabs(want[i] - 0.5))) << i;
        for (int64_t i = 0; i < never; ++i)
          EXPECT_NEAR(first[i], 0.5 * std::pow(1 - lr * decay, steps), 1e-6) << "decays only";
      },
      {{1, 2, 3}, {0, 1}});
}

TEST(OnebitAdam, AnyLossyCodecHasTheSameBitsInEveryStage) {
  on_worlds(
      [](Communicator& c) {
        for (const char* codec : {"bf16", "int8", "topk"})
          for (const bool error_feedback : {true, false}) {
            DistConfig config = by_signs(0, warmup);
            config.compression.codec = codec;
            config.compression.error_feedback = error_feedback;
            const std::vector<float> first = trained(c, config);
            for (int stage = 1; stage <= 3; ++stage)
              for (const bool overlap : {true, false}) {
                config.zero_stage = stage;
                config.overlap = overlap;
                EXPECT_EQ(trained(c, config), first) << codec << ", stage " << stage;
              }
          }
      },
      {{2, 3}, {0}});
}

// A least-squares fit of 40 x 30 numbers, on data that differ by rank and step.
double fitted(Communicator& c, const DistConfig& dist, const OptimConfig& optim) {
  const Tensor truth = random_tensor({40, 30}, 1);
  Tensor w = Tensor::zeros({40, 30});
  w.set_requires_grad(true);
  double error = 0;
  train(
      c, dist, optim, 200, {{"w", w}}, 0.02,
      [&](int64_t t) {
        const Tensor x =
            random_tensor({16, 30}, static_cast<uint32_t>(1000 + t * c.size() + c.rank()));
        const Tensor miss = add(linear(x, w), scale(linear(x, truth), -1));
        return scale(sum(square(miss)), 1.0f / static_cast<float>(16 * c.size()));
      },
      [&] {
        for (int64_t i = 0; i < w.numel(); ++i)
          error += std::pow(w.data<float>()[i] - truth.data<float>()[i], 2);
      });
  return std::sqrt(error / static_cast<double>(w.numel()));
}

TEST(OnebitAdam, LearnsWhatAdamWLearns) {
  on_worlds(
      [](Communicator& c) {
        OptimConfig adamw;
        adamw.weight_decay = 0;
        OptimConfig onebit = adamw;
        onebit.name = "onebit_adam";
        const double plain = fitted(c, {}, adamw), bits = fitted(c, by_signs(0, 40), onebit);
        EXPECT_LT(plain, 0.05);
        EXPECT_LT(bits, 0.1);
      },
      {{2}, {0}});
}

}  // namespace
}  // namespace lockstep
