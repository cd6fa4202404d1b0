// What a resume accepts, and what it says of it.
#include "examples/saved_run.h"

#include <nlohmann/json.hpp>

#include "examples/config_io.h"
#include "tests/file_test_util.h"

namespace lockstep {
namespace {

struct Attempt {
  Config config;
  int ranks = 4;
  int threads = 1;

  SavedRun saved() const {
    return {.config = print_config(config),
            .data_identity = "text",
            .tokenizer = "bytes",
            .step = 10,
            .global_batch = 8,
            .ranks = ranks,
            .accumulate = config.dist.reduced() ? "reduced" : "local",
            .threads = threads,
            .cpu = "x86-64-v3",
            .environment = {}};
  }
};

using Lines = std::vector<std::string>;

Lines notes(const Attempt& before, const Attempt& after) {
  const SavedRun saved = SavedRun::from_json(before.saved().to_json(), "test");
  return check_resumable(saved, after.saved());
}

TEST(SavedRun, WhatChangesNoBitIsNotNoted) {
  Attempt before, after;
  after.config.dist.bucket_mb = 1;
  after.config.dist.overlap = false;
  after.config.dist.zero_stage = 1;
  after.config.dist.backend = "local";
  after.config.dist.timeout_s = 1;
  after.config.log.every = 1;
  EXPECT_EQ(notes(before, after), Lines());
}

TEST(SavedRun, TheNumberOfRanksCostsBitsUnlessAnyWorld) {
  Attempt before, after;
  after.ranks = 2;
  EXPECT_EQ(notes(before, after),
            Lines{"the number of ranks was 4 and is 2 now: the same samples, but bits may differ"});
  before.config.train.reproducible = after.config.train.reproducible = "any_world";
  EXPECT_EQ(notes(before, after),
            Lines{"the number of ranks was 4 and is 2 now: the same samples and the same bits"});
  after.threads = 2;
  EXPECT_EQ(notes(before, after)[1], "threads per rank was 1 and is 2 now; bits may differ");
}

TEST(SavedRun, AnotherSumIsNoted) {
  Attempt before, after;
  after.config.dist.zero_stage = 3;  // and so reduced
  EXPECT_EQ(notes(before, after),
            Lines{"the sum over micro-batches (dist.accumulate) was local and is reduced now; bits "
                  "may differ"});
  after.config.dist.accumulate = "local";
  EXPECT_EQ(notes(before, after), Lines());
  after.config.train.reproducible = "any_world";
  EXPECT_EQ(
      notes(before, after),
      Lines{"train.reproducible was \"same_world\" and is \"any_world\" now; bits may differ"});
}

// A new key is refused until somebody has said whether it changes bits.
TEST(SavedRun, EveryKeyOfTheRanksIsInOneOfTheLists) {
  const Attempt attempt;
  const nlohmann::json config = nlohmann::json::parse(attempt.saved().config).flatten();
  int keys = 0;
  for (const auto& [pointer, value] : config.items()) {
    if (!pointer.starts_with("/dist/")) continue;
    ++keys;
    nlohmann::json other = config;
    other[pointer] = "other";
    SavedRun before = attempt.saved();
    before.config = other.unflatten().dump();
    EXPECT_NO_THROW(check_resumable(before, attempt.saved())) << pointer;
  }
  EXPECT_GE(keys, 16);
}

TEST(SavedRun, AnotherCodecIsNoted) {
  Attempt before, after;
  after.config.dist.compression.codec = "int8";
  after.config.dist.compression.warmup_steps = 5;
  EXPECT_EQ(notes(before, after),
            (Lines{"dist.compression.codec was \"none\" and is \"int8\" now; bits may differ",
                   "dist.compression.warmup_steps was 0 and is 5 now; bits may differ"}));
}

TEST(SavedRun, WhatIsNoRunIsRefused) {
  expect_error(Exit::data,
               {"[resume] here holds no training run (", "a folder that training saved"},
               [] { SavedRun::from_json("{}", "here"); });
}

TEST(SavedRun, HowBytesTravelIsNotNoted) {
  SavedRun before = Attempt().saved(), after = before;
  after.environment["OMPI_MCA_hwloc_base_binding_policy"] = "none";
  EXPECT_EQ(check_resumable(before, after), Lines());
  after.environment["OMP_DYNAMIC"] = "true";
  EXPECT_EQ(check_resumable(before, after).size(), 1);
}

TEST(SavedRun, AnotherBatchSaysWhatToSet) {
  SavedRun before = Attempt().saved(), after = before;
  after.global_batch = 4;
  expect_error(
      Exit::config,
      {"[train.global_batch] is 4 samples but the checkpoint was made with 8; set it to 8"},
      [&] { check_resumable(before, after); });
}

// An environment variable may hold anything.
TEST(SavedRun, BytesThatAreNotUtf8AreSaved) {
  SavedRun run = Attempt().saved();
  run.environment["OMP_AFFINITY_FORMAT"] = "caf\xe9";
  EXPECT_EQ(SavedRun::from_json(run.to_json(), "test").environment.size(), 1);
}

}  // namespace
}  // namespace lockstep
