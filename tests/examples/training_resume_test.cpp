// Runs that end early, by plan, kill or signal, and go on. Read next: training_errors_test.cpp.
#include <algorithm>
#include <csignal>
#include <random>

#include "tests/examples/tiny_run.h"

namespace lockstep {
namespace {

Json steps(int64_t n) {
  return {{"model", {{"dropout", 0.1}}},
          {"train", {{"steps", n}, {"global_batch", 8}}},
          {"checkpoint", {{"keep_last", 3}}}};
}

class Resume : public TinyRun {
 protected:
  // As if the run had never been interrupted.
  void expect_uninterrupted(const std::string& name, const Json& config, Launch launch) {
    EXPECT_EQ(trace(name).bits, trained(name + "_in_one_go", config, launch).bits) << name;
  }

  void expect_two_attempts_equal_one(const std::string& precision) {
    const Json all = merged(steps(5), {{"train", {{"precision", precision}, {"eval_every", 2}}}});
    trained("run", merged(all, {{"train", {{"steps", 2}}}}));
    trained("run", all);
    expect_uninterrupted("run", all, Launch::alone);
    expect_logged("run", "resumed from run/checkpoints/step-00000002 after step 2");
    expect_logged("run", "warning: resumed although train.steps was 2 and is 5 now");
    EXPECT_EQ(trace("run").steps.at(3)["attempt"], 2);
  }

  void expect_logged(const std::string& name, const std::string& text) {
    const std::string log = trace(name).log;
    EXPECT_NE(log.find(text), std::string::npos) << "\"" << text << "\" is not in:\n" << log;
  }

  std::string config_of(const std::string& name) {
    return read_text(folder_ / name + "/config.json");
  }
};

TEST_F(Resume, StepsInTwoAttemptsAreThoseOfOne) {
  expect_two_attempts_equal_one("fp32");
}

TEST_F(Resume, SoakStepsInTwoAttemptsAreThoseOfOneInBf16) {
  expect_two_attempts_equal_one("bf16");
}

TEST_F(Resume, AfterKillAtAnyMoment) {
  const Json config = merged(steps(40), {{"checkpoint", {{"every", 1}}}});
  configure("run", config);
  Process process(folder_.path(), trainer() + " --config run.json");
  ASSERT_TRUE(process.wait_until([&] { return steps_done("run") >= 7; }));
  process.send(SIGKILL);
  EXPECT_EQ(process.wait().code, 128 + SIGKILL);
  EXPECT_GE(trained("run", config).lines, 40);
  expect_uninterrupted("run", config, Launch::alone);
}

TEST_F(Resume, SoakAfterARankWasStopped) {
  const Json config =
      merged(steps(60), {{"checkpoint", {{"every", 5}}}, {"dist", {{"timeout_s", 2.0}}}});
  configure("run", config, Launch::mpirun);
  Process process(folder_.path(), trainer(Launch::mpirun) + " --config run.json");
  ASSERT_TRUE(process.wait_until([&] { return steps_done("run") >= 12; }));
  kill(rank_of_mpirun(process.pid(), 1), SIGSTOP);
  EXPECT_EQ(process.wait().code, 75);
  expect_logged("run", " waited 2.0 s for rank 1 on host ");
  EXPECT_LT(steps_done("run"), 60);
  trained("run", config, Launch::mpirun);
  expect_uninterrupted("run", config, Launch::mpirun);
}

TEST_F(Resume, SoakManyKills) {
  std::mt19937 random(1);
  const Json one_sum = {{"dist", {{"accumulate", "local"}}}};
  const std::string bits = trained("in_one_go", merged(steps(30), one_sum)).bits;
  for (int kill = 0; kill < 50; ++kill) {
    const Launch launch = kill % 16 < 8 ? Launch::alone : Launch::mpirun;
    // Saving takes longer than a step this small, so with `every` 1 most kills meet a save.
    const Json config = merged(
        merged(steps(30), one_sum),
        {{"checkpoint", {{"every", kill % 2 ? 1 : 7}}}, {"dist", {{"zero_stage", kill / 2 % 4}}}});
    const std::string run = "run_" + std::to_string(kill);
    configure(run, config, launch);
    Process process(folder_.path(), trainer(launch) + " --config " + run + ".json");
    const int64_t at = random() % 25;
    process.wait_until([&] { return steps_done(run) >= at; });
    usleep(random() % 10'000);
    process.send(SIGKILL);
    process.wait();
    // Ranks whose mpirun was killed end a moment later.
    Ended again;
    for (int i = 0; i < 20 && (again = train(run, launch)).code == 75; ++i) usleep(200'000);
    EXPECT_EQ(again.code, 0) << again.errors;
    EXPECT_EQ(trace(run).bits, bits) << config;
    std::filesystem::remove_all(folder_ / run);
  }
}

TEST_F(Resume, SoakWithAnotherNumberOfRanksTheSamplesAreTheSame) {
  const Trace both = trained("reference", steps(4));
  trained("run", steps(3));
  const Trace one = trained("run", merged(steps(4), {{"dist", {{"local_ranks", 1}}}}));
  EXPECT_NEAR(one.steps.at(4)["loss"], both.steps.at(4)["loss"].get<double>(), 1e-5);
  expect_logged("run", "warning: resumed although the number of ranks was 2 and is 1 now");
}

TEST_F(Resume, AsAnotherRunIsRefusedAfterAMoveIsNot) {
  trained("run", steps(2));
  const std::string config = config_of("run");
  const auto refused = [&](const Json& changes, const std::vector<std::string>& parts) {
    configure("run", merged(steps(4), changes));
    expect_one_line(train("run"), 78, parts);
    EXPECT_EQ(config_of("run"), config) << changes;
    EXPECT_EQ(checkpoints("run"), std::vector<std::string>{"step-00000002"});
  };
  refused({{"optim", {{"lr", 0.5}}}},
          {"[optim.lr] is 0.5 but the checkpoint was made with 0.003; set it back"});
  refused({{"model", {{"d_model", 64}}}},
          {"[model.d_model] is 64 but the checkpoint was made with 32"});
  refused({{"train", {{"seed", 9}}}}, {"[train.seed] is 9 but the checkpoint was made with 0"});
  refused({{"train", {{"global_batch", 4}}}},
          {"[train.global_batch] is 4 samples but the checkpoint was made with 8"});
  write_text(folder_ / "text", std::string(2000, 'x') + "\n");
  prepare({.text = folder_ / "text", .out = folder_ / "other", .val_fraction = 0});
  refused({{"data", {{"train", "other/train_*.bin"}}}},
          {"[data.train] is other data (llmc shards=1 tokens=2001 ", ") than the checkpoint"});
  EXPECT_NE(trace("run").log.find("stopped: "), std::string::npos) << "the log tells why, too";

  // Nothing of that harmed it; and it may be moved.
  std::filesystem::rename(folder_ / "run", folder_ / "moved");
  EXPECT_EQ(trained("moved", steps(3)).lines, 3);
  EXPECT_NE(config_of("moved"), config);
}

TEST_F(Resume, FromAnOlderCheckpointSetsTheAbandonedOnesAside) {
  const Json config = merged(steps(3), {{"checkpoint", {{"every", 1}}}});
  trained("run", config);
  trained("run", merged(config, {{"checkpoint", {{"resume", "run/checkpoints/step-00000001"}}},
                                 {"train", {{"steps", 2}}}}));
  expect_logged("run",
                "warning: set run/checkpoints/step-00000003 aside as "
                "run/checkpoints/step-00000003.abandoned: this run goes on from step 1");
  EXPECT_EQ(checkpoints("run"),
            (std::vector<std::string>{"step-00000001", "step-00000002", "step-00000002.abandoned",
                                      "step-00000003.abandoned"}));
  trained("run", config);
  expect_logged("run", "resumed from run/checkpoints/step-00000002 after step 2");
  // Anew in the same folder: nothing of before may be picked up later.
  trained("run", merged(config, {{"checkpoint", {{"resume", "none"}}}, {"train", {{"steps", 1}}}}));
  const auto left = checkpoints("run");
  EXPECT_EQ(std::count_if(left.begin(), left.end(),
                          [](auto& name) { return name.find('.') == std::string::npos; }),
            1);
}

// As a job does that runs the same command again until it ends with 0; each attempt makes two
// steps.
TEST_F(Resume, APathIsWhereTheFirstAttemptStarts) {
  const Json saving = {{"checkpoint", {{"every", 1}}}};
  const auto from = [&](const std::string& path, int64_t n) {
    return merged(merged(steps(n), saving), {{"checkpoint", {{"resume", path}}}});
  };
  trained("whole", merged(steps(6), saving));
  trained("origin", merged(steps(2), saving));
  const std::string origin = "origin/checkpoints/step-00000002";
  trained("run", from(origin, 4));
  expect_logged("run", "resumed from " + origin + " after step 2");
  trained("run", from(origin, 5));
  expect_logged("run", "checkpoint.resume " + origin +
                           " is where this run started; it goes on from "
                           "run/checkpoints/step-00000004, which it has saved since");
  expect_logged("run", "resumed from run/checkpoints/step-00000004 after step 4");
  std::filesystem::remove_all(folder_ / "origin");  // it has served
  EXPECT_EQ(trained("run", from(origin, 6)).lines, 4);
  EXPECT_EQ(trace("run").steps.at(6)["loss"], trace("whole").steps.at(6)["loss"]);

  // Back in the run's own history, likewise; then to another place there.
  const std::string back = "run/checkpoints/step-00000004";
  EXPECT_EQ(trained("run", from(back, 5)).lines, 5);
  expect_logged("run", "set run/checkpoints/step-00000006 aside as ");
  EXPECT_EQ(trained("run", from(back, 6)).lines, 6);
  EXPECT_EQ(trained("run", from("run/checkpoints/step-00000005", 6)).lines, 7);
  EXPECT_EQ(trace("run").steps.at(6)["loss"], trace("whole").steps.at(6)["loss"]);
}

TEST_F(Resume, APathIsTakenWhereAllOfTheFolderIsDamaged) {
  trained("origin", steps(2));
  trained("run", steps(2));
  std::filesystem::remove(folder_ / "run/checkpoints/step-00000002/manifest.json");
  const std::string origin = "origin/checkpoints/step-00000002";
  trained("run", merged(steps(3), {{"checkpoint", {{"resume", origin}}}}));
  expect_logged("run", "none of its 1 checkpoints is complete");
  expect_logged("run", "resumed from " + origin + " after step 2");
}

// Its metrics would be those of two runs.
TEST_F(Resume, IntoTheFolderOfAnotherRunIsRefused) {
  const Json other = {{"optim", {{"lr", 0.5}}}};
  trained("run", steps(2));
  trained("other", merged(steps(2), other));
  const std::string config = config_of("run");
  const auto refused = [&](const std::string& resume) {
    configure("run", merged(merged(steps(4), other), {{"checkpoint", {{"resume", resume}}}}));
    expect_one_line(train("run"), 78,
                    {"[run_dir] run holds another run, made with optim.lr 0.003 instead of 0.5; "
                     "choose another run_dir, or move that one away"});
    EXPECT_EQ(config_of("run"), config) << resume;
    EXPECT_EQ(steps_done("run"), 2) << resume;
  };
  for (const std::string resume : {"none", "other/checkpoints/step-00000002"}) {
    refused(resume);
    EXPECT_EQ(checkpoints("run"), std::vector<std::string>{"step-00000002"});
  }
  std::filesystem::remove_all(folder_ / "run/checkpoints");
  refused("auto");
  // Where nothing was trained, nothing is mixed.
  std::filesystem::remove(folder_ / "run/metrics.jsonl");
  EXPECT_EQ(trained("run", merged(steps(1), other)).lines, 1);
}

TEST_F(Resume, ADamagedCheckpointIsPassedOver) {
  const Json config = merged(steps(3), {{"checkpoint", {{"every", 1}}}});
  trained("run", config);
  const std::string newest = folder_ / "run/checkpoints/step-00000003/rank-000.safetensors";
  std::string bytes = read_text(newest);
  bytes[bytes.size() / 2] ^= 1;
  write_text(newest, bytes);
  configure("run", merged(config, {{"checkpoint", {{"resume", "run/checkpoints/step-00000003"}}},
                                   {"train", {{"steps", 4}}}}));
  expect_one_line(
      train("run"), 65,
      {"run/checkpoints/step-00000003: rank-000.safetensors is damaged", "its checksum is "});
  const Json longer = merged(config, {{"train", {{"steps", 4}}}});
  trained("run", longer);
  expect_logged("run", "resumed from run/checkpoints/step-00000002 after step 2");
  expect_logged("run", "warning: [checkpoint] run/checkpoints/step-00000003: rank-000.safetensors");
  expect_uninterrupted("run", longer, Launch::alone);
}

// Trains until a few steps are done, and starts the run again after `stop` to a few steps more.
class Signals : public Resume {
 protected:
  void interrupt(int signal, Launch launch, const std::vector<int>& codes) {
    const Json endless = merged(steps(1'000'000), {{"checkpoint", {{"every", 50}}}});
    configure("run", endless, launch);
    Process process(folder_.path(), trainer(launch) + " --config run.json");
    ASSERT_TRUE(process.wait_until([&] { return steps_done("run") >= 3; }));
    process.send(signal);
    const Ended ended = process.wait();
    EXPECT_NE(std::find(codes.begin(), codes.end(), ended.code), codes.end()) << ended.code;
    expect_logged("run", std::string("signal ") + (signal == SIGTERM ? "TERM" : "USR1"));
    const int64_t done = steps_done("run");
    const Json rest = merged(endless, {{"train", {{"steps", done + 2}}}});
    trained("run", rest, launch);
    expect_logged("run", "resumed from run/checkpoints/step-");
    expect_uninterrupted("run", rest, launch);
    if (codes == std::vector{75}) {
      expect_logged("run", "after step " + std::to_string(done));
      EXPECT_EQ(steps_done("run"), done + 2) << "no step was lost";
    }
  }
};

TEST_F(Signals, Usr1ToMpirunEndsWithACheckpointAnd75) {
  interrupt(SIGUSR1, Launch::mpirun, {75});
}

TEST_F(Signals, SoakTermWithoutMpirunEndsWithACheckpointAnd75) {
  interrupt(SIGTERM, Launch::alone, {75});
}

// Also the step at whose end the signal came is evaluated.
TEST_F(Signals, AnEvaluationThatIsDueIsNotLost) {
  const Json endless = merged(steps(1'000'000), {{"train", {{"eval_every", 1}}}});
  configure("run", endless);
  Process process(folder_.path(), trainer() + " --config run.json");
  ASSERT_TRUE(process.wait_until([&] { return steps_done("run") >= 3; }));
  process.send(SIGHUP);
  EXPECT_EQ(process.wait().code, 75);
  expect_logged("run", "signal HUP");
  for (const auto& [step, metrics] : trace("run").steps)
    EXPECT_TRUE(metrics.contains("val_loss")) << step;
}

TEST_F(Resume, WithAnotherTokenizerIsRefused) {
  trained("run", steps(2));
  configure("run", merged(steps(3), {{"data", {{"tokenizer", "none"}}}}));
  expect_one_line(
      train("run"), 78,
      {"[data.tokenizer] is another one (none) than the checkpoint was made with (bytes"});
}

TEST_F(Resume, OfALargerModelsWeightsIsRefused) {
  trained("run", steps(2));
  for (const std::string source : {"run/checkpoints/step-00000002", "weights"}) {
    if (source == "weights") {
      EXPECT_EQ(command(trainer() + " export --run run --out weights").code, 0);
    }
    configure("other", {{"model", {{"n_layer", 1}, {"init_from", source}}}});
    expect_one_line(train("other"), 65, {"is no parameter of this model"});
  }
}

// mpirun leaves its ranks a second; it returns 1 or what they did.
TEST_F(Signals, SoakTermToMpirunLosesAtMostTheStepsSinceTheLastCheckpoint) {
  interrupt(SIGTERM, Launch::mpirun, {1, 75, 143});
}

}  // namespace
}  // namespace lockstep
