// Checkpoints of sharded and compressed runs: whatever is split among the ranks, and whoever goes
// on from it. Read next: examples/saved_state.h.
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>

#include "examples/safetensors.h"
#include "tests/examples/tiny_run.h"

namespace lockstep {
namespace {

// 8 micro-batches of one sample, dealt out to up to 4 ranks.
Json steps(int64_t n) {
  return {{"model", {{"dropout", 0.1}}},
          {"train", {{"steps", n}, {"micro_batch", 1}, {"global_batch", 8}, {"eval_every", 2}}},
          {"checkpoint", {{"keep_last", 3}}}};
}

Json ranks(int n, int stage = 0) {
  return {{"dist",
           {{"backend", "local"}, {"local_ranks", n}, {"zero_stage", stage}, {"bucket_mb", 0.05}}}};
}

Json codec(const std::string& name) {
  if (name == "none") return nullptr;
  Json compression = {{"codec", name}, {"min_elements", 1024}, {"warmup_steps", 1}};
  if (name == "topk") compression["ratio"] = 0.05;
  return {{"dist", {{"compression", compression}}}};
}

const Json any_world = {{"train", {{"reproducible", "any_world"}}}};

class Shards : public TinyRun {
 protected:
  void expect_logged(const std::string& name, const std::string& text) {
    const std::string log = trace(name).log;
    EXPECT_NE(log.find(text), std::string::npos) << "\"" << text << "\" is not in:\n" << log;
  }
  void expect_not_logged(const std::string& name, const std::string& text) {
    const std::string log = trace(name).log;
    EXPECT_EQ(log.find(text), std::string::npos) << log;
  }

  void expect_two_attempts_equal_one(const Json& how) {
    const std::string name = "run_" + std::to_string(++runs_);
    const Json all = merged(steps(5), how);
    trained(name, merged(all, {{"train", {{"steps", 2}}}}));
    const std::string bits = trained(name, all).bits;
    EXPECT_EQ(bits, trained(name + "_in_one_go", all).bits) << how;
    expect_logged(name, "resumed from " + name + "/checkpoints/step-00000002 after step 2");
  }

 private:
  int runs_ = 0;
};

TEST_F(Shards, StepsInTwoAttemptsAreThoseOfOne) {
  expect_two_attempts_equal_one(merged(ranks(2, 3), codec("none")));
  expect_two_attempts_equal_one(merged(ranks(4, 2), codec("int8")));
  // Its second moment freezes after the step on which the first attempt ends, and before.
  for (const int64_t frozen_after : {2, 1}) {
    Json onebit_adam = {{"optim", {{"name", "onebit_adam"}}}};
    onebit_adam["dist"]["compression"]["warmup_steps"] = frozen_after;
    expect_two_attempts_equal_one(merged(merged(ranks(2, 1), codec("sign")), onebit_adam));
    expect_two_attempts_equal_one(merged(merged(ranks(2, 2), codec("topk")), onebit_adam));
  }
}

TEST_F(Shards, SoakStepsInTwoAttemptsAreThoseOfOne) {
  for (const int n : {2, 4})
    for (const int stage : {0, 1, 2, 3})
      for (const std::string name : {"none", "bf16", "int8", "topk", "rows", "sign"})
        for (const std::string precision : {"fp32", "bf16"})
          expect_two_attempts_equal_one(merged(merged(ranks(n, stage), codec(name)),
                                               {{"train", {{"precision", precision}}}}));
}

// One tree over all micro-batches: neither ranks nor stages nor buckets change a bit, at no step.
TEST_F(Shards, AnotherNumberOfRanksAndStageOverAResumeChangesNoBit) {
  const auto until = [](int64_t n, const Json& how) {
    return merged(merged(steps(n), any_world), how);
  };
  trained("run", until(2, ranks(4, 0)));
  trained("run", until(4, ranks(2, 3)));
  trained("run", until(6, merged(ranks(1, 1), {{"dist", {{"bucket_mb", 1}}}})));
  EXPECT_EQ(trained("run", until(8, ranks(4, 2))).bits,
            trained("in_one_go", until(8, ranks(4, 0))).bits);
  expect_logged("run",
                "the number of ranks was 4 and is 2 now: the same samples and the same bits");
  expect_not_logged("run", "bits may differ");
}

TEST_F(Shards, AnotherStageOverAResumeChangesNoBitOfOneSum) {
  const auto until = [](int64_t n, int stage) {
    return merged(merged(steps(n), merged(ranks(2, stage), codec("int8"))),
                  {{"dist", {{"accumulate", "local"}}}});
  };
  trained("run", until(2, 0));
  trained("run", until(4, 3));
  EXPECT_EQ(trained("run", until(6, 1)).bits, trained("in_one_go", until(6, 0)).bits);
  expect_not_logged("run", "bits may differ");
}

TEST_F(Shards, SoakWhatCodecsLeftOutIsReshardedOrDroppedAndTheLogSaysSo) {
  const auto until = [](int64_t n, const Json& how) { return merged(steps(n), how); };
  trained("run", until(2, merged(ranks(4, 2), codec("int8"))));
  trained("run", until(3, merged(ranks(2, 2), codec("int8"))));
  expect_logged("run", "on 4 ranks is summed up on 2");
  trained("run", until(4, ranks(2, 2)));
  expect_logged("run", "is dropped: nothing makes up for it without error feedback");
  expect_logged("run", "dist.compression.codec was \"int8\" and is \"none\" now; bits may differ");
  trained("run", until(5, merged(ranks(2, 2), codec("sign"))));
  expect_logged("run", "starts from zero: the checkpoint has none");
}

TEST_F(Shards, ADamagedCutOrMissingShardIsPassedOver) {
  const Json config = merged(merged(steps(3), ranks(4, 1)), {{"checkpoint", {{"every", 1}}}});
  const std::string bits = trained("run", config).bits;
  const std::string newest = folder_ / "run/checkpoints/step-00000003/",
                    shard = newest + "rank-002.safetensors", content = read_text(shard);
  const auto passed_over = [&](const std::string& why) {
    EXPECT_EQ(trained("run", config).bits, bits) << why;
    expect_logged("run", "warning: [checkpoint] run/checkpoints/step-00000003: " + why);
    EXPECT_EQ(read_text(shard), content) << "saved again";
  };
  std::string flipped = content;
  flipped[flipped.size() / 2] ^= 4;
  write_text(shard, flipped);
  passed_over("rank-002.safetensors is damaged: its checksum is ");
  write_text(shard, content.substr(0, content.size() - 1));
  passed_over("rank-002.safetensors has " + std::to_string(content.size() - 1) + " bytes, ");
  std::filesystem::remove(shard);
  passed_over("rank-002.safetensors cannot be read: No such file");
}

TEST_F(Shards, SoakAMovedRunGoesOn) {
  const Json config = merged(steps(4), ranks(2, 3));
  trained("run", merged(config, {{"train", {{"steps", 2}}}}));
  std::filesystem::rename(folder_ / "run", folder_ / "moved");
  EXPECT_EQ(trained("moved", config).bits, trained("in_one_go", config).bits);
}

TEST_F(Shards, AModelIsExportedWholeAndStartsAnotherRun) {
  const Json bf16 = {{"train", {{"precision", "bf16"}}}};
  const auto exported = [&](const std::string& run, const std::string& options = "") {
    const Ended ended =
        command(trainer() + " export --run " + run + " --out " + run + ".safetensors" + options);
    EXPECT_EQ(ended.code, 0) << ended.errors;
    EXPECT_NE(ended.output.find(run + ".safetensors: 28 tensors of step 2, "), std::string::npos)
        << ended.output;
    return SafetensorsFile(folder_ / run + ".safetensors");
  };
  trained("whole", merged(merged(steps(2), merged(ranks(2, 0), bf16)),
                          {{"dist", {{"accumulate", "reduced"}}}}));
  trained("cut", merged(steps(2), merged(ranks(2, 3), bf16)));
  exported("whole");
  exported("cut");
  std::string bytes = read_text(folder_ / "cut.safetensors");
  EXPECT_EQ(SafetensorsFile(folder_ / "cut.safetensors").load("wte.weight").shape(),
            (Shape{256, 32}));
  const SafetensorsFile one(folder_ / "whole.safetensors"), other(folder_ / "cut.safetensors");
  for (const auto& entry : one.entries()) {
    EXPECT_EQ(entry.dtype, "BF16") << entry.name;
    EXPECT_TRUE(std::ranges::equal(one.bytes(entry.name), other.bytes(entry.name))) << entry.name;
  }
  exported("cut", " --masters");
  const SafetensorsFile masters(folder_ / "cut.safetensors");
  for (const auto& entry : masters.entries()) EXPECT_EQ(entry.dtype, "F32") << entry.name;
  EXPECT_EQ(masters.metadata().at("step"), "2");
  EXPECT_EQ(Json::parse(masters.metadata().at("config"))["model"]["d_model"], 32);

  // From the file as from the checkpoint.
  const auto from = [&](const std::string& path) -> Json {
    return merged(steps(1), {{"model", {{"init_from", path}}}, {"train", {{"precision", "bf16"}}}});
  };
  const std::string bits = trained("from_checkpoint", from("whole/checkpoints/step-00000002")).bits;
  EXPECT_EQ(trained("from_file", from("whole.safetensors")).bits, bits);
  EXPECT_EQ(trained("sharded", merged(from("cut/checkpoints/step-00000002"), ranks(2, 3))).bits,
            trained("not", merged(from("whole.safetensors"),
                                  merged(ranks(2, 0), {{"dist", {{"accumulate", "reduced"}}}})))
                .bits);

  const auto refused = [&](const Json& changes, const std::string& part) {
    configure("refused", merged(from("whole.safetensors"), changes));
    expect_one_line(train("refused"), 65, {part});
  };
  refused({{"model", {{"d_model", 64}}}},
          "[checkpoint] whole.safetensors: \"wte.weight\" has 8192 elements as [256, 32] in "
          "whole.safetensors, [256, 64] is wanted");
  refused({{"model", {{"n_layer", 3}}}}, "no tensor \"h.2.");
  refused({{"train", {{"precision", "fp32"}}}}, "is BF16[");
  expect_one_line(command(trainer() + " export --run nowhere --out x"), 65,
                  {"[--run] nowhere has no checkpoint"});
  expect_one_line(command(trainer() + " export --run cut --out nowhere/x"), 78,
                  {"[file] cannot write nowhere/x.tmp: No such file"});
  expect_one_line(command(trainer() + " export --run cut"), 64, {"--out is required"});

  // What is there and is no file stays; a link stays one.
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  for (const std::string there : {"pipe", "cut"})
    expect_one_line(command(trainer() + " export --run cut --out " + there), 78,
                    {"[file] " + there + " is no file that could be replaced; name a file"});
  EXPECT_TRUE(std::filesystem::is_fifo(folder_ / "pipe"));
  std::filesystem::create_symlink("target.safetensors", folder_ / "link");
  EXPECT_EQ(command(trainer() + " export --run cut --out link").code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ / "link"));
  EXPECT_EQ(SafetensorsFile(folder_ / "target.safetensors").metadata().at("step"), "2");
}

// The limit comes to one rank of four, when it saves the second time.
TEST_F(Shards, SoakADiskThatIsFullForOneRankOfFour) {
  configure("run",
            merged(merged(steps(1'000'000), {{"dist", {{"zero_stage", 2}}}}),
                   {{"checkpoint", {{"every", 100}}}}),
            Launch::mpirun);
  const std::string two = trainer(Launch::mpirun),
                    four = std::string(two).replace(two.find("-np 2"), 5, "-np 4");
  Process process(folder_.path(), four + " --config run.json");
  ASSERT_TRUE(process.wait_until([&] { return steps_done("run") >= 101; }));
  // Rank 0, which holds the lock, was started first and rank 2 two processes later; a child of
  // mpirun says which rank it is.
  const pid_t third = rank_of_mpirun(process.pid(), 2);
  ASSERT_GT(third, 0);
  const rlimit limit = {50'000, 50'000};
  ASSERT_EQ(prlimit(third, RLIMIT_FSIZE, &limit, nullptr), 0);
  expect_one_line(process.wait(), 75,
                  {"was not saved, older checkpoints are untouched: rank 2 on host ",
                   "rank-002.safetensors: File too large after "});
  EXPECT_EQ(checkpoints("run").back().size(), 13u) << "nothing half-written";
  EXPECT_EQ(command(trainer() + " generate --run run --prompt x --tokens 1").code, 0);
}

}  // namespace
}  // namespace lockstep
