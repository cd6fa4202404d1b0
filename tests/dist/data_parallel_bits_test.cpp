// The promise of data parallelism: whatever the reducer, bucket size, overlap, transport and hosts,
// gradients and norm have the same bits, and those are the bits of a sum that this test forms
// itself from every rank's own gradients. Runs among threads and among processes: see worlds.h.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "dist/data_parallel.h"
#include "tests/dist/small_model.h"
#include "tests/dist/worlds.h"

namespace lockstep {
namespace {

const LocalWorlds worlds = {{1, 2, 4}, {0, 1}};

using Gradients = std::vector<std::vector<float>>;  // by parameter

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// This rank's own gradients of a step, without any DataParallel.
Gradients own_gradients(const SmallModel& model, int rank, int64_t step, int64_t micro_steps) {
  for (const auto& [name, tensor] : model.parameters()) tensor.leaf().reset_grad();
  for (int64_t micro = 0; micro < micro_steps; ++micro) backward(model.loss(rank, step, micro));
  Gradients own;
  for (const auto& [name, tensor] : model.parameters())
    own.push_back(tensor.leaf().has_grad() ? tensor.grad().to_vector<float>()
                                           : std::vector<float>(tensor.numel(), 0.0f));
  return own;
}

// Every rank's own gradients, summed element by element as a tree of scalars.
Gradients summed(Communicator& c, const Gradients& own) {
  std::vector<float> flat;
  for (const auto& values : own) flat.insert(flat.end(), values.begin(), values.end());
  const auto all = gather_values(c, flat);
  Gradients sums;
  size_t at = 0;
  for (const auto& values : own) {
    std::vector<float>& sum = sums.emplace_back();
    for (size_t i = 0; i < values.size(); ++i, ++at) {
      std::vector<float> column(c.size());
      for (int r = 0; r < c.size(); ++r) column[r] = all[r][at];
      sum.push_back(scalar_tree(column, 0, column.size()));
    }
  }
  return sums;
}

double norm_of(const Gradients& gradients) {
  long double sum = 0;
  for (const auto& values : gradients)
    for (float x : values) sum += static_cast<long double>(x) * x;
  return static_cast<double>(std::sqrt(sum));
}

// A model with one form of data parallelism.
struct Replica {
  Replica(Communicator& c, std::string name, const DistConfig& config)
      : name(std::move(name)), exchange(make_data_parallel(config, c, model.parameters())) {}

  GradientReport step(Communicator& c, int64_t step, int64_t micro_steps) {
    for (int64_t micro = 0; micro < micro_steps; ++micro) {
      exchange->begin_micro_step({.index = micro, .count = micro_steps});
      dawdle(c, static_cast<int>(step * 10 + micro));
      backward(model.loss(c.rank(), step, micro));
    }
    const GradientReport report = exchange->finish();
    for (size_t i = 0; i < model.parameters().size(); ++i)
      gradients[i] = exchange->gradient(i).to_vector<float>();
    exchange->end_step(true);
    return report;
  }

  std::string name;
  SmallModel model;
  std::unique_ptr<DataParallel> exchange;
  Gradients gradients = Gradients(model.parameters().size());
};

std::vector<std::unique_ptr<Replica>> all_forms(Communicator& c) {
  std::vector<std::unique_ptr<Replica>> forms;
  DistConfig config;
  config.reducer = "naive";
  forms.push_back(std::make_unique<Replica>(c, "naive", config));
  config.reducer = "bucketed";
  for (double bucket_mb : {0.001, 0.05, 25.0}) {  // a bucket per parameter, two, one
    for (bool overlap : {true, false}) {
      config.bucket_mb = bucket_mb;
      config.overlap = overlap;
      forms.push_back(std::make_unique<Replica>(
          c, fmt::format("buckets of {} MiB, overlap {}", bucket_mb, overlap), config));
    }
  }
  return forms;
}

// One of several steps, so that what an earlier one left behind would show.
void expect_equal_step(Communicator& c, std::vector<std::unique_ptr<Replica>>& forms,
                       const Gradients& expected, int64_t step, int64_t micro_steps) {
  double naive_norm = 0;
  for (auto& form : forms) {
    SCOPED_TRACE(fmt::format("{}, {} of {} ranks, step {} of {} micro steps", form->name, c.rank(),
                             c.size(), step, micro_steps));
    const GradientReport report = form->step(c, step, micro_steps);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(same_bits(form->gradients[i], expected[i])) << form->model.parameters()[i].name;
    if (form == forms.front()) naive_norm = report.norm;
    EXPECT_EQ(std::bit_cast<uint64_t>(report.norm), std::bit_cast<uint64_t>(naive_norm));
    // fp64 sums of some 2e4 squares: at most log2(2e4) roundings by tree, cells of 4096 in lanes.
    const double norm = norm_of(expected);
    EXPECT_NEAR(report.norm, norm, 1e-12 * norm);
    EXPECT_EQ(report.non_finite, "");
    EXPECT_EQ(form->exchange->unused(), std::vector<std::string>{"unused"});
  }
}

TEST(DataParallelBits, AreThoseOfTheTreeForEveryForm) {
  on_worlds(
      [](Communicator& c) {
        const SmallModel reference;
        auto forms = all_forms(c);
        for (int64_t micro_steps : {1, 3, 1})
          for (int64_t step = 0; step < 2; ++step)
            expect_equal_step(c, forms,
                              summed(c, own_gradients(reference, c.rank(), step, micro_steps)),
                              step, micro_steps);
      },
      worlds);
}

// Without the dawdling that tests of order need, buckets meet at other moments.
TEST(DataParallelBits, StayEqualOverManyQuickSteps) {
  on_worlds(
      [](Communicator& c) {
        SmallModel naive_model, bucketed_model;
        DistConfig config;
        config.bucket_mb = 0.02;
        const auto bucketed = make_data_parallel(config, c, bucketed_model.parameters());
        config.reducer = "naive";
        const auto naive = make_data_parallel(config, c, naive_model.parameters());
        for (int64_t step = 0; step < 12; ++step) {
          bucketed->begin_micro_step({.index = 0, .count = 1});
          backward(bucketed_model.loss(c.rank(), step, 0));
          const double norm = bucketed->finish().norm;
          naive->begin_micro_step({.index = 0, .count = 1});
          backward(naive_model.loss(c.rank(), step, 0));
          EXPECT_EQ(naive->finish().norm, norm);
          for (size_t i = 0; i < naive_model.parameters().size(); ++i)
            EXPECT_TRUE(same_bits(naive->gradient(i).to_vector<float>(),
                                  bucketed->gradient(i).to_vector<float>()))
                << naive_model.parameters()[i].name << ", step " << step;
        }
      },
      worlds);
}

}  // namespace
}  // namespace lockstep
