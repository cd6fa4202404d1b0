// What a run tells: metrics.jsonl, log.txt, losses that mean what they say; and the commands that
// use what it made, generate and bench. Read next: examples/trainer.cpp.
#include <cmath>

#include "data/shard.h"
#include "tests/examples/tiny_run.h"

namespace lockstep {
namespace {

class Reports : public TinyRun {
 protected:
  void expect_good_metrics(Launch launch) {
    const Trace run = trained("run",
                              {{"train", {{"steps", 30}, {"global_batch", 8}, {"eval_every", 10}}},
                               {"checkpoint", {{"every", 10}}}},
                              launch);
    ASSERT_EQ(run.lines, 30);
    for (const auto& [t, m] : run.steps) {
      for (const char* name :
           {"attempt",         "loss",         "lr",      "grad_norm",  "tokens",
            "samples_per_s",   "tokens_per_s", "step_ms", "compute_ms", "comm_ms",
            "exposed_comm_ms", "wait_ms",      "data_ms", "wire_bytes", "param_bytes",
            "host_bytes",      "compression",  "mfu",     "peak_bytes", "allocations"})
        EXPECT_TRUE(m.contains(name) && m[name].is_number()) << name << " of " << m;
      EXPECT_EQ(m.contains("val_loss"), t % 10 == 0) << m;
      EXPECT_EQ(m["tokens"], 8 * 32);
      const double step = m["step_ms"], compute = m["compute_ms"], exposed = m["exposed_comm_ms"],
                   wait = m["wait_ms"], data = m["data_ms"];
      EXPECT_NEAR(step, compute + exposed + wait + data, 1e-6 * step);
      for (const double part : {compute, exposed, wait, data}) EXPECT_GE(part, 0) << m;
      EXPECT_LE(exposed, m["comm_ms"].get<double>() + 1e-6) << m;
      EXPECT_GT(m["mfu"], 0);
      EXPECT_LT(m["mfu"], 1.2);
      if (t > 3) {
        EXPECT_EQ(m["allocations"], 0) << m;
      }
    }
  }
};

// Mean of -ln p over the text's bytes with p from their frequencies: what a model reaches that
// ignores the context.
double unigram_entropy(const std::string& shard) {
  std::map<char, double> counts;
  const std::string tokens = shard.substr(1024);  // after llm.c's header, 2 bytes each
  for (size_t i = 0; i < tokens.size(); i += 2) ++counts[tokens[i]];
  const double n = static_cast<double>(tokens.size()) / 2;
  double sum = 0;
  for (const auto& [byte, count] : counts) sum -= count / n * std::log(count / n);
  return sum;
}

TEST_F(Reports, MetricsHaveEveryFieldAndAddUp) {
  expect_good_metrics(Launch::alone);
}

TEST_F(Reports, SoakMetricsUnderMpirun) {
  expect_good_metrics(Launch::mpirun);
}

TEST_F(Reports, ShardsThatDoNotTellTheirTokenizerAreNamed) {
  write_text(folder_ / "text", std::string(2000, 'x') + "\n");
  prepare({.text = folder_ / "text", .out = folder_ / "own", .val_fraction = 0});
  const Json config = {{"data", {{"train", "own/train_*.bin"}, {"val", ""}}},
                       {"train", {{"steps", 1}}}};
  const std::string line =
      "data.tokenizer bytes could not be checked: no made_from.txt in own tells which one made";
  EXPECT_EQ(trained("told", config).log.find("could not be checked"), std::string::npos);
  std::filesystem::remove(folder_ / "own/made_from.txt");
  const std::string log = trained("untold", config).log;
  EXPECT_NE(log.find(line), std::string::npos) << log;
}

// A codec that meets nothing large enough is not silently none.
TEST_F(Reports, ACodecThatCompressesNothingIsTold) {
  const Json codec = {{"codec", "int8"}, {"min_elements", 4000}};
  const std::string warning = "codec int8 compresses nothing: no matrix has 65536 elements";
  const Trace some =
      trained("some", {{"train", {{"steps", 1}}}, {"dist", {{"compression", codec}}}});
  EXPECT_NE(some.log.find(" as int8 (71 % of"), std::string::npos) << some.log;
  EXPECT_EQ(some.log.find("compresses nothing"), std::string::npos) << some.log;
  const Trace none = trained(
      "none", {{"train", {{"steps", 1}}}, {"dist", {{"compression", {{"codec", "int8"}}}}}});
  EXPECT_NE(none.log.find(warning), std::string::npos) << none.log;

  const Json late = {{"codec", "int8"}, {"min_elements", 4000}, {"warmup_steps", 2}};
  const auto log_of = [&](int steps) {
    return trained(fmt::format("late_{}", steps),
                   {{"train", {{"steps", steps}}}, {"dist", {{"compression", late}}}})
        .log;
  };
  EXPECT_NE(log_of(2).find("codec int8 compresses nothing in this run: "
                           "dist.compression.warmup_steps 2 of train.steps 2 are without it"),
            std::string::npos);
  EXPECT_EQ(log_of(3).find("compresses nothing"), std::string::npos);
}

TEST_F(Reports, WhatOnebitAdamChangesIsTold) {
  const Json codec = {{"codec", "sign"}, {"min_elements", 4000}, {"warmup_steps", 1}};
  const auto log_of = [&](double clip) {
    return trained(fmt::format("clip_{}", clip),
                   {{"optim", {{"name", "onebit_adam"}, {"grad_clip", clip}}},
                    {"train", {{"steps", 2}}},
                    {"dist", {{"compression", codec}}}})
        .log;
  };
  const std::string line =
      "onebit_adam: after step 1 the second moment stays as it is and ranks send momenta";
  EXPECT_NE(log_of(0.5).find(line + "; optim.grad_clip 0.5 ends there"), std::string::npos);
  EXPECT_NE(log_of(0).find(line + "\n"), std::string::npos);
}

TEST_F(Reports, LogHasAHeaderPerAttempt) {
  trained("run", {{"train", {{"steps", 1}}}});
  const Trace run = trained("run", {{"train", {{"steps", 2}}}});
  for (const std::string& part :
       {"attempt 1 on " + host_of_tests() + ": commit ", std::string("attempt 2 on "),
        std::string(", compiler "), std::string(", flags "),
        std::string("2 ranks (local) on 1 host, 1 thread each; "), std::string(" cores usable of "),
        std::string("environment OMP_WAIT_POLICY="), std::string("gpt2 with "),
        std::string("MFU counts "), std::string("GEMM measured here at start"),
        std::string("validation loss "), std::string("saved run/checkpoints/step-00000002"),
        std::string("done: 2 steps, newest checkpoint run/checkpoints/step-00000002")})
    EXPECT_NE(run.log.find(part), std::string::npos) << "\"" << part << "\" is not in:\n"
                                                     << run.log;
}

TEST_F(Reports, LossFallsBelowWhatIgnoresTheContext) {
  const Trace run = trained("run", {{"train", {{"steps", 60}}}, {"optim", {{"lr", 1e-2}}}});
  const Json config = Json::parse(read_text(folder_ / "run/config.json"));
  const std::string shards = config["data"]["train"];
  const double ignorant =
      unigram_entropy(read_text(shards.substr(0, shards.find('*')) + "000000.bin"));
  EXPECT_NEAR(run.steps.at(1)["loss"], std::log(256), 0.2);
  EXPECT_LT(run.steps.at(60)["loss"], ignorant / 2);
  EXPECT_LT(run.steps.at(60)["val_loss"], ignorant);  // which has letters that training has not
}

// With steps of size zero the weights stay, so only the evaluation can differ.
TEST_F(Reports, ValidationLossIsThatOfAllWindowsAtAnyNumberOfRanks) {
  const Json frozen = {{"optim", {{"lr", 0}}}, {"train", {{"steps", 1}, {"global_batch", 4}}}};
  const auto loss_with = [&](const std::string& name, const Json& changes) {
    return trained(name, merged(frozen, changes)).steps.at(1)["val_loss"].get<double>();
  };
  const double two = loss_with("two", {}), one = loss_with("one", {{"dist", {{"local_ranks", 1}}}});
  EXPECT_EQ(two, one);
  // Windows of 2 or of 1 at a time: other GEMM shapes, the same windows.
  const double singly = loss_with("singly", {{"train", {{"micro_batch", 1}}}});
  EXPECT_NEAR(singly, two, 1e-6);
  EXPECT_GT(std::abs(loss_with("part", {{"train", {{"eval_batches", 1}}}}) - two), 1e-5);
}

TEST_F(Reports, ADivergedRunStopsAndKeepsItsCheckpoint) {
  const auto diverging = [](int64_t steps, double lr) -> Json {
    return {{"optim", {{"lr", lr}, {"grad_clip", 0}, {"name", "sgd"}, {"momentum", 0}}},
            {"train", {{"steps", steps}, {"max_skipped", 3}}},
            {"checkpoint", {{"every", 1}}}};
  };
  configure("run", diverging(100, 1000));
  const Ended ended = train("run");
  expect_one_line(
      ended, 65,
      {"[train] step ", ": 3 steps in a row had a loss or gradient that is not finite, ",
       "in the last one first in ", "a lower optim.lr"});
  const Trace run = trace("run");
  EXPECT_NE(run.log.find("is not finite"), std::string::npos);
  const Json last = run.steps.rbegin()->second;
  EXPECT_EQ(last["skipped"], 3) << last;
  EXPECT_TRUE(last["loss"].is_null() || last["grad_norm"].is_null()) << last;
  // The step that stopped it was not saved, and what is there can be opened.
  EXPECT_LT(
      checkpoints("run").back(),
      "step-" + std::string(8 - std::to_string(run.lines).size(), '0') + std::to_string(run.lines));
  EXPECT_EQ(command(trainer() + " generate --run run --prompt x --tokens 1").code, 0);
  // While steps are skipped nothing is saved, so nothing pushes the good checkpoints out.
  EXPECT_EQ(checkpoints("run").back().substr(5), fmt::format("{:08}", run.lines - 3));
  expect_one_line(ended, 65,
                  {"model.init_from=run/checkpoints/" + checkpoints("run").back() + ")"});
}

// Found before the first step, not at the first evaluation, which would be too late.
TEST_F(Reports, BadValidationDataIsFoundBeforeTraining) {
  ShardWriter writer(folder_ / "val.bin", 2);
  writer.append(std::vector<int32_t>(64, 999));
  writer.finish();
  configure("run", {{"data", {{"val", "val.bin"}}}});
  expect_one_line(train("run"), 65, {"val.bin: token 0 has id 999, outside the vocabulary of 256"});
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run/metrics.jsonl"));
}

TEST_F(Reports, GenerateWritesFromARunOrACheckpoint) {
  // More ids than the tokenizer knows: none of them may be drawn.
  trained("run", {{"model", {{"vocab_size", 300}}}, {"train", {{"steps", 2}}}});
  const std::string generate = trainer() + " generate --prompt there --tokens 40 ";
  const auto text = [&](const std::string& options) {
    const Ended ended = command(generate + options);
    EXPECT_EQ(ended.code, 0) << ended.errors;
    EXPECT_EQ(ended.output.rfind("there", 0), 0u);
    EXPECT_EQ(ended.output.size(), 5u + 40u + 1u);
    return ended.output;
  };
  const std::string once = text("--run run");
  EXPECT_EQ(text("--checkpoint run/checkpoints/step-00000002"), once);
  EXPECT_NE(text("--run run --seed 1"), once);
  EXPECT_EQ(text("--run run --temperature 0"), text("--run run --top-k 1 --seed 7"));

  expect_one_line(command(trainer() + " generate --run run --prompt ''"), 64,
                  {"[generate] --prompt is empty; text starts from at least one token"});
  expect_one_line(command(trainer() + " generate --run nowhere"), 65,
                  {"[--run] nowhere has no checkpoint; name the run_dir of a run"});
  expect_one_line(command(trainer() + " generate --run run --checkpoint x"), 64, {});
  trained("ids", {{"data", {{"tokenizer", "none"}}}, {"train", {{"steps", 1}}}});
  expect_one_line(command(trainer() + " generate --run ids"), 78,
                  {"was trained with data.tokenizer none, so its tokens have no text"});
}

TEST_F(Reports, BenchesWriteJson) {
  configure("run");
  const auto json_of = [&](const std::string& arguments) {
    const Ended ended = command(trainer() + " bench " + arguments + " --json out.json");
    EXPECT_EQ(ended.code, 0) << ended.errors;
    return Json::parse(read_text(folder_ / "out.json"));
  };
  const Json step = json_of("step --config run.json --steps 3 --warmup 3 --set model.d_model=128");
  EXPECT_EQ(step["ranks"], 2);
  EXPECT_GT(step["tokens_per_s"]["median"], 0);
  EXPECT_EQ(step["allocations"]["max"], 0);
  EXPECT_GT(step["memory"]["total"]["peak"], 0);
  ASSERT_EQ(step["by_rank"].size(), 2u);
  for (const Json& rank : step["by_rank"]) EXPECT_GT(rank["compute_ms"], 0) << rank;
  EXPECT_EQ(step["what_if"][0]["step_ms"], step["overlap"]["bound_ms"]);
  EXPECT_EQ(step["what_if"][0]["link_bytes"], step["overlap"]["link_bytes"]);
  std::vector<std::string> changes;
  for (const Json& answer : step["what_if"]) changes.push_back(answer["change"]);
  for (const char* change :
       {"dist.compression.codec bf16", "dist.compression.codec sign", "train.global_batch 8"})
    EXPECT_TRUE(std::ranges::count(changes, change)) << change;
  EXPECT_FALSE(std::ranges::count(changes, "a link 10 times as fast")) << "on one host";
  // Where a micro batch more is sent or gathered for, no such thing is promised.
  const Json stage3 =
      json_of("step --config run.json --steps 2 --warmup 1 --set dist.zero_stage=3");
  // Nor of a codec, where no matrix is large enough for it.
  for (const Json& answer : stage3["what_if"])
    for (const char* change : {"train.global_batch", "dist.compression.codec"})
      EXPECT_EQ(answer["change"].get<std::string>().find(change), std::string::npos);
  const Json gemm = json_of("gemm --config run.json --set dist.local_ranks=1 --seconds 0.01");
  EXPECT_EQ(gemm["rows"].size(), 15u);
  for (const Json& row : gemm["rows"]) EXPECT_GT(row["gflops"], 0) << row;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run")) << "a bench leaves no run folder";
}

}  // namespace
}  // namespace lockstep
