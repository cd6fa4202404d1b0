// One pipeline with exchangeable parts: whatever is sharded, however large the buckets, overlapped
// or not, the parameters after some steps have the bits of the naive form in the same accumulation
// mode; with a codec, those of stage 0 with that codec. Runs among threads and among processes: see
// worlds.h.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "dist/data_parallel.h"
#include "optim/optimizer.h"
#include "tests/dist/small_model.h"
#include "tests/dist/worlds.h"

namespace lockstep {
namespace {

const LocalWorlds worlds = {{1, 2, 4}, {0, 1, 2}};
const LocalWorlds one_host = {{1, 2, 4}, {0}};
const LocalWorlds one_host_or_pairs = {{1, 2, 4}, {0, 2}};
const std::vector<size_t> units = {0, 1, 1, 2, 2, 3};  // of SmallModel's parameters

struct Trained {
  std::vector<std::byte> parameters;
  std::vector<double> norms;
  GradientReport last;
  bool operator==(const Trained& other) const {
    return parameters == other.parameters && norms == other.norms;
  }
};

struct Job {
  DistConfig config;
  SumOrder order = SumOrder::same_world;
  int64_t steps = 3;
  int64_t micro_steps = 2;
  int64_t poisoned_step = 0;  // in which rank 0 has a NaN
};

std::vector<std::byte> bytes_of(const std::vector<NamedTensor>& tensors) {
  std::vector<std::byte> all;
  for (const auto& [name, tensor] : tensors) {
    const auto* bytes = static_cast<const std::byte*>(tensor.raw());
    all.insert(all.end(), bytes, bytes + tensor.bytes());
  }
  return all;
}

// Of a micro batch that a rank trains on: with any_world its data follow from its global index.
Tensor loss_of(const SmallModel& model, Communicator& c, const Job& job, int64_t step,
               int64_t micro) {
  if (job.order == SumOrder::same_world) return model.loss(c.rank(), step, micro);
  const int64_t index =
      job.config.reduced() ? micro * c.size() + c.rank() : c.rank() * job.micro_steps + micro;
  return model.loss(static_cast<int>(index), step, 0);
}

Trained train(Communicator& c, const Job& job) {
  SmallModel model;
  const auto exchange = make_data_parallel(job.config, c, model.parameters(), units, job.order);
  const auto optimizer = make_optimizer({}, exchange->shards());
  Trained trained;
  for (int64_t step = 1; step <= job.steps; ++step) {
    StepScalars scalars;
    scalars.step = static_cast<int32_t>(step);
    scalars.lr = 0.01f;
    optimizer->prepare(scalars, step);
    for (int64_t micro = 0; micro < job.micro_steps; ++micro) {
      exchange->begin_micro_step({.step = step, .index = micro, .count = job.micro_steps});
      for (size_t unit = 0; unit < 4; ++unit) exchange->acquire(unit);
      dawdle(c, static_cast<int>(step * 10 + micro));
      Tensor loss = loss_of(model, c, job, step, micro);
      if (step == job.poisoned_step && c.rank() == 0)
        loss = mul(loss, Tensor::from(std::vector<float>{NAN}, {1}));
      backward(loss);
      for (size_t unit = 4; unit-- > 0;) exchange->release(unit);
    }
    trained.last = exchange->finish();
    trained.norms.push_back(trained.last.norm);
    scalars.skip = std::isfinite(trained.last.norm) ? 0 : 1;
    for (size_t i = 0; i < exchange->shards().size(); ++i)
      optimizer->step(i, exchange->gradient(i), scalars);
    exchange->end_step(!scalars.skip);
  }
  for (size_t unit = 0; unit < 4; ++unit) exchange->acquire(unit);
  trained.parameters = bytes_of(model.parameters());
  for (size_t unit = 0; unit < 4; ++unit) exchange->release(unit);
  return trained;
}

std::string describe(const Job& job) {
  return fmt::format("stage {}, accumulate {}, buckets of {} MiB, overlap {}, codec {}",
                     job.config.zero_stage, job.config.accumulate, job.config.bucket_mb,
                     job.config.overlap, job.config.compression.codec);
}

// Every combination of what must change no bit. Under the race detector, which is ten times slower,
// bits are not the question, and on devices that are pretended: there the two that interleave most
// and least.
void for_all(const std::function<void(Job)>& visit, Job job) {
#ifdef __SANITIZE_THREAD__
  const bool slow = true;
#else
  const bool slow = on_devices();
#endif
  const std::vector<double> bucket_sizes =
      slow ? std::vector<double>{0.001} : std::vector<double>{0.001, 0.05, 25.0};
  for (int stage : {0, 1, 2, 3})
    for (double bucket_mb : bucket_sizes)
      for (bool overlap : {true, false}) {
        job.config.zero_stage = stage;
        job.config.bucket_mb = bucket_mb;
        job.config.overlap = overlap;
        visit(job);
      }
}

TEST(Zero, EveryStageGivesTheBitsOfTheNaiveForm) {
  on_worlds(
      [](Communicator& c) {
        for (const char* accumulate : {"local", "reduced"}) {
          Job naive;
          naive.config.reducer = "naive";
          naive.config.accumulate = accumulate;
          const Trained expected = train(c, naive);
          Job job;
          job.config.accumulate = accumulate;
          for_all(
              [&](const Job& variant) {
                EXPECT_EQ(train(c, variant), expected)
                    << describe(variant) << " on rank " << c.rank() << " of " << c.size();
              },
              job);
        }
      },
      worlds);
}

TEST(Zero, ACodecGivesTheSameBitsInEveryStage) {
  on_worlds(
      [](Communicator& c) {
        for (const char* codec : {"bf16", "int8", "topk", "rows", "sign"})
          for (const char* accumulate : {"local", "reduced"}) {
            Job job;
            job.config.accumulate = accumulate;
            job.config.compression.codec = codec;
            job.config.compression.min_elements = 100;
            job.config.compression.warmup_steps = 1;
            if (job.config.compression.codec == "topk") job.config.compression.ratio = 0.1;
            const Trained expected = train(c, job);
            for_all(
                [&](const Job& variant) {
                  EXPECT_EQ(train(c, variant), expected)
                      << describe(variant) << " on rank " << c.rank() << " of " << c.size();
                },
                job);
            Job plain;
            plain.config.accumulate = accumulate;
            if (std::string(codec) == "rows")
              EXPECT_EQ(train(c, plain), expected) << "lossless";
            else
              EXPECT_NE(train(c, plain), expected) << codec << " changes something";
          }
      },
      one_host);
}

// The same training by one rank that holds every micro batch's gradient and adds them up as a tree
// of scalars.
std::vector<std::byte> trained_alone(int64_t steps, int64_t micro_batches) {
  SmallModel model;
  const auto optimizer = make_optimizer({}, model.parameters());
  for (int64_t step = 1; step <= steps; ++step) {
    std::vector<std::vector<std::vector<float>>> gradients;  // by micro batch and parameter
    for (int64_t i = 0; i < micro_batches; ++i) {
      for (const auto& [name, tensor] : model.parameters()) tensor.leaf().reset_grad();
      backward(model.loss(static_cast<int>(i), step, 0));
      gradients.emplace_back();
      for (const auto& [name, tensor] : model.parameters())
        gradients.back().push_back(tensor.leaf().has_grad()
                                       ? tensor.grad().to_vector<float>()
                                       : std::vector<float>(tensor.numel(), 0.0f));
    }
    StepScalars scalars;
    scalars.step = static_cast<int32_t>(step);
    scalars.lr = 0.01f;
    optimizer->prepare(scalars, step);
    for (size_t p = 0; p < model.parameters().size(); ++p) {
      std::vector<float> sum;
      for (size_t e = 0; e < gradients[0][p].size(); ++e) {
        std::vector<float> column;
        for (const auto& gradient : gradients) column.push_back(gradient[p][e]);
        sum.push_back(scalar_tree(column, 0, column.size()));
      }
      optimizer->step(p, Tensor::from(sum, model.parameters()[p].tensor.shape()), scalars);
    }
  }
  return bytes_of(model.parameters());
}

TEST(Zero, AnyWorldGivesTheSameBitsOnAnyNumberOfRanks) {
  constexpr int64_t micro_batches = 8;
  on_worlds(
      [&](Communicator& c) {
        const std::vector<std::byte> expected = trained_alone(2, micro_batches);
        if (!std::has_single_bit(static_cast<unsigned>(c.size()))) return;  // what it promises
        for (const char* accumulate : {"local", "reduced"}) {
          Job job;
          job.order = SumOrder::any_world;
          job.config.accumulate = accumulate;
          job.steps = 2;
          job.micro_steps = micro_batches / c.size();
          for_all(
              [&](const Job& variant) {
                EXPECT_EQ(train(c, variant).parameters, expected)
                    << describe(variant) << " on rank " << c.rank() << " of " << c.size();
              },
              job);
        }
      },
      one_host_or_pairs);
}

TEST(Zero, ANonFiniteGradientSkipsTheStepInEveryStageAndCodecAndLeavesTheResidual) {
  on_worlds(
      [](Communicator& c) {
        for (const char* codec : {"none", "bf16", "int8", "topk", "rows", "sign"}) {
          Job job;
          job.config.accumulate = "reduced";
          job.config.compression.codec = codec;
          job.config.compression.min_elements = 100;
          job.steps = 2;
          job.poisoned_step = 2;
          const Trained poisoned = train(c, job);
          EXPECT_FALSE(std::isfinite(poisoned.last.norm)) << codec;
          EXPECT_EQ(poisoned.last.non_finite, "table") << codec;
          job.steps = 1;
          EXPECT_EQ(train(c, job).parameters, poisoned.parameters) << codec;
          for (int stage : {1, 2, 3}) {
            job.steps = 2;
            job.config.zero_stage = stage;
            const Trained other = train(c, job);
            EXPECT_EQ(other.parameters, poisoned.parameters) << codec << ", stage " << stage;
            EXPECT_EQ(other.last.non_finite, "table") << codec << ", stage " << stage;
          }
        }
      },
      one_host);
}

}  // namespace
}  // namespace lockstep
