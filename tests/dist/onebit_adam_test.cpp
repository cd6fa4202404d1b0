// 1-bit Adam as parts of the one pipeline (codec sign, error feedback, the owner's momentum)
// against the paper's algorithm, written down in double precision with a momentum on every rank;
// and what it learns beside AdamW.
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

// The sign of every element times the mean magnitude of its cell; `rest` gets what that leaves out.
Values compressed(const Values& x, Values& rest) {
  Values sent(n);
  for (int64_t begin = 0; begin < n; begin += cell_size) {
    const int64_t end = std::min(n, begin + cell_size);
    double mean = 0;
    for (int64_t i = begin; i < end; ++i)
      mean += std::fabs(x[i]) / static_cast<double>(end - begin);
    for (int64_t i = begin; i < end; ++i) sent[i] = std::copysign(mean, x[i]);
  }
  for (int64_t i = 0; i < n; ++i) rest[i] = x[i] - sent[i];
  return sent;
}

// Algorithm 1 of the paper. Its momentum before compression, beta1 m + (1 - beta1) g of each rank,
// differs from what is sent here, (1 - beta1) g, by what all ranks have alike.
Values trained_by_the_paper(int ranks) {
  Values x(n, 0.5), m(n), v(n), owner_rest(n);
  std::vector<Values> rests(ranks, Values(n));
  for (int64_t t = 1; t <= steps; ++t) {
    Values change(n);  // of the momentum
    for (int r = 0; r < ranks; ++r) {
      const std::vector<float> g = gradient(r, t);
      Values mine(n);
      for (int64_t i = 0; i < n; ++i) mine[i] = (1 - beta1) * g[i] + (t > warmup ? rests[r][i] : 0);
      if (t > warmup) mine = compressed(mine, rests[r]);
      for (int64_t i = 0; i < n; ++i) change[i] += mine[i];
    }
    if (t > warmup) {
      for (int64_t i = 0; i < n; ++i) change[i] += owner_rest[i];
      change = compressed(change, owner_rest);
    }
    for (int64_t i = 0; i < n; ++i) {
      const double g = change[i] / (1 - beta1);
      if (t <= warmup) v[i] = beta2 * v[i] + (1 - beta2) * g * g;
      x[i] -= lr * decay * x[i];
      if (v[i] == 0) continue;
      m[i] = beta1 * m[i] + change[i];
      const double root = std::sqrt(v[i] / (1 - std::pow(beta2, std::min(t, warmup))));
      x[i] -= lr * m[i] / (1 - std::pow(beta1, t)) / (root + eps);
    }
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
  const auto exchange = make_data_parallel(dist, c, parameters);
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
  }
  exchange->acquire(0);
  at_end();
  exchange->release(0);
}

TEST(OnebitAdam, IsThePapersInEveryStage) {
  on_worlds(
      [](Communicator& c) {
        const Values want = trained_by_the_paper(c.size());
        std::vector<float> first;
        for (int stage = 0; stage <= 3; ++stage) {
          Tensor x = Tensor::from(std::vector<float>(n, 0.5f), {rows, columns});
          x.set_requires_grad(true);
          std::vector<float> got;
          train(
              c, by_signs(stage, warmup), onebit_adam(), steps, {{"x", x}}, lr,
              [&](int64_t t) {
                return sum(mul(x, Tensor::from(gradient(c.rank(), t), {rows, columns})));
              },
              [&] { got = x.to_vector<float>(); });
          if (stage == 0) first = got;
          EXPECT_EQ(got, first) << "stage " << stage << " has bits of its own";
        }
        // Twenty steps of at most about lr each, and what they started from, in fp32.
        for (int64_t i = 0; i < n; ++i)
          ASSERT_NEAR(first[i], want[i], 64 * 0x1p-24 * (1 + std::fabs(want[i] - 0.5))) << i;
        for (int64_t i = 0; i < never; ++i)
          EXPECT_NEAR(first[i], 0.5 * std::pow(1 - lr * decay, steps), 1e-6) << "decays only";
      },
      {{1, 2, 3}, {0, 1}});
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
