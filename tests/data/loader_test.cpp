// Micro-batches: the same whatever the number of threads and ranks, resumed or not; errors surface.
#include "data/loader.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <numeric>

#include "tests/data/data_test_util.h"

namespace lockstep {
namespace {

using Rows = std::map<int64_t, std::pair<std::vector<int32_t>, std::vector<int32_t>>>;

// Token i is i, so a row shows where it was read.
class Counting : public Dataset {
 public:
  explicit Counting(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  void read(int64_t first, int64_t count, int32_t* out) const override {
    check(first + count <= size_, "read beyond the end");
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    if (first + count > fails_from) fail(Exit::data, "a bad token");
    std::iota(out, out + count, static_cast<int32_t>(first));
  }
  std::string identity() const override { return "counting"; }

  int64_t fails_from = int64_t{1} << 60;
  std::chrono::milliseconds delay{0};

 private:
  int64_t size_;
};

constexpr int64_t seq_len = 8, micro_batch = 3;

Loader::Options options(int workers, int64_t start = 0) {
  return {.micro_batch = micro_batch, .seq_len = seq_len, .workers = workers, .start = start};
}

void collect(const Batch& batch, Rows& rows) {
  for (int64_t row = 0; row < micro_batch; ++row) {
    const auto x = batch.x.begin() + row * seq_len, y = batch.y.begin() + row * seq_len;
    EXPECT_TRUE(rows.emplace(batch.first_sample + row,
                             std::pair(std::vector(x, x + seq_len), std::vector(y, y + seq_len)))
                    .second);
  }
}

TEST(Loader, TargetsAreTheInputsOneTokenLater) {
  const Counting data(1000);
  const TrainSampler sampler("data.train", data.size(), seq_len, 1);
  Loader loader(data, sampler, step_schedule(Deal::blocked, 0, 1, 1, micro_batch), options(0));
  for (int64_t number = 0; number < 5; ++number) {
    const Batch& batch = loader.next();
    EXPECT_EQ(batch.number, number);
    EXPECT_EQ(batch.first_sample, number * micro_batch);
    EXPECT_EQ(batch.targets, micro_batch * seq_len);
    for (int64_t i = 0; i < micro_batch * seq_len; ++i) {
      const int64_t sample = batch.first_sample + i / seq_len;
      EXPECT_EQ(batch.x[i], sampler.window(sample).start + i % seq_len);
      EXPECT_EQ(batch.y[i], batch.x[i] + 1);
    }
  }
}

TEST(Loader, ThreadsDoNotChangeTheBatches) {
  const Counting data(1000);
  const TrainSampler sampler("data.train", data.size(), seq_len, 1);
  const auto schedule = step_schedule(Deal::interleaved, 1, 2, 2, micro_batch);
  Loader synchronous(data, sampler, schedule, options(0));
  Loader one(data, sampler, schedule, options(1)), three(data, sampler, schedule, options(3));
  for (int i = 0; i < 300; ++i) {
    const Batch& expected = synchronous.next();
    for (Loader* loader : {&one, &three}) {
      const Batch& batch = loader->next();
      ASSERT_EQ(batch.number, expected.number);
      ASSERT_EQ(batch.first_sample, expected.first_sample);
      ASSERT_EQ(batch.x, expected.x);
      ASSERT_EQ(batch.y, expected.y);
    }
  }
}

TEST(Loader, AStepHoldsTheSameSamplesAtAnyNumberOfRanks) {
  const Counting data(1000);
  const TrainSampler sampler("data.train", data.size(), seq_len, 1);
  const int64_t steps = 5, global_micro_batches = 4;
  std::vector<Rows> results;
  for (const Deal deal : {Deal::blocked, Deal::interleaved})
    for (const int world : {1, 2, 4}) {
      const int64_t micro_steps = global_micro_batches / world;
      Rows rows;
      for (int rank = 0; rank < world; ++rank) {
        Loader loader(data, sampler, step_schedule(deal, rank, world, micro_steps, micro_batch),
                      options(1));
        for (int64_t number = 0; number < steps * micro_steps; ++number) {
          const Batch& batch = loader.next();
          EXPECT_EQ(batch.first_sample / (micro_batch * global_micro_batches),
                    number / micro_steps);  // belongs to this step
          collect(batch, rows);
        }
      }
      EXPECT_EQ(rows.size(), static_cast<size_t>(steps * global_micro_batches * micro_batch));
      EXPECT_EQ(rows.rbegin()->first, steps * global_micro_batches * micro_batch - 1);
      results.push_back(rows);
    }
  for (const Rows& rows : results) EXPECT_EQ(rows, results.front());
}

TEST(StepSchedule, DealsAsDocumented) {
  // Rank 1 of 2 with 3 micro-steps of 10 samples: a step has 60.
  const auto blocked = step_schedule(Deal::blocked, 1, 2, 3, 10);
  const auto interleaved = step_schedule(Deal::interleaved, 1, 2, 3, 10);
  const std::vector<int64_t> expected_blocked = {30, 40, 50, 90}, expected_inter = {10, 30, 50, 70};
  for (int64_t n = 0; n < 4; ++n) {
    EXPECT_EQ(blocked(n), expected_blocked[n]);
    EXPECT_EQ(interleaved(n), expected_inter[n]);
  }
}

TEST(Loader, ResumesAtAnyNumber) {
  const Counting data(1000);
  const TrainSampler sampler("data.train", data.size(), seq_len, 1);
  const auto schedule = step_schedule(Deal::blocked, 0, 2, 2, micro_batch);
  Loader whole(data, sampler, schedule, options(0));
  for (int i = 0; i < 17; ++i) whole.next();
  Loader resumed(data, sampler, schedule, options(2, 17));
  for (int i = 0; i < 50; ++i) {
    const Batch &expected = whole.next(), &batch = resumed.next();
    ASSERT_EQ(batch.number, 17 + i);
    ASSERT_EQ(batch.x, expected.x);
  }
}

TEST(Loader, ValidationInFullWithPaddingInTheLastBatch) {
  const Counting data(60);  // 59 targets: 7 windows of 8 and one of 3
  const ValidationSampler sampler("data.val", data.size(), seq_len);
  ASSERT_EQ(sampler.samples(), 8);
  std::vector<int> predicted(60);
  int64_t targets = 0;
  const int world = 2;
  for (int rank = 0; rank < world; ++rank) {
    Loader loader(data, sampler, step_schedule(Deal::interleaved, rank, world, 1, micro_batch),
                  options(1));
    for (int batch_number = 0; batch_number < 2; ++batch_number) {
      const Batch& batch = loader.next();
      targets += batch.targets;
      for (int64_t i = 0; i < micro_batch * seq_len; ++i)
        if (batch.y[i] >= 0)
          ++predicted[batch.y[i]];
        else
          EXPECT_EQ(batch.x[i], 0);
    }
  }
  EXPECT_EQ(targets, 59);
  EXPECT_EQ(predicted[0], 0);
  EXPECT_TRUE(std::all_of(predicted.begin() + 1, predicted.end(), [](int n) { return n == 1; }));
}

TEST(Loader, ErrorsOfThreadsSurfaceInNextAndStay) {
  Counting data(1000);
  data.fails_from = 100;
  const ValidationSampler sampler("data.val", data.size(), seq_len);
  for (int workers : {0, 1, 3}) {
    Loader loader(data, sampler, step_schedule(Deal::blocked, 0, 1, 1, micro_batch),
                  options(workers));
    for (int i = 0; i < 4; ++i) loader.next();  // targets up to token 96
    for (int i = 0; i < 2; ++i) expect_error(Exit::data, {"a bad token"}, [&] { loader.next(); });
  }
}

TEST(Loader, DestructionNeverWaitsForAReader) {
  const Counting data(1000);
  const TrainSampler sampler("data.train", data.size(), seq_len, 1);
  const auto schedule = step_schedule(Deal::blocked, 0, 1, 1, micro_batch);
  for (int i = 0; i < 100; ++i) Loader(data, sampler, schedule, options(1 + i % 4));
  for (int i = 0; i < 100; ++i) {
    Loader loader(data, sampler, schedule, options(1 + i % 4));
    for (int j = 0; j < i % 5; ++j) loader.next();
  }
}

TEST(Loader, CountsTheTimeItWaited) {
  Counting data(1000);
  const TrainSampler sampler("data.train", data.size(), seq_len, 1);
  data.delay = std::chrono::milliseconds(2);
  Loader loader(data, sampler, step_schedule(Deal::blocked, 0, 1, 1, micro_batch), options(0));
  EXPECT_EQ(loader.waited_seconds(), 0);
  for (int i = 0; i < 5; ++i) loader.next();
  EXPECT_GE(loader.waited_seconds(), 5 * micro_batch * 0.002);  // sleeps are never shorter
}

}  // namespace
}  // namespace lockstep
