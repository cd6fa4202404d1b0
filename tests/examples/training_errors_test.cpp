// Bad input to a run of two ranks under mpirun: one line, the documented exit code, and a run
// folder that is as it was. Each launch that fails takes over a second, most of it mpirun ending
// the other rank; so what does not depend on mpirun runs without. Read next:
// training_reports_test.cpp.
#include <sys/resource.h>

#include <csignal>

#include "tests/examples/tiny_run.h"

namespace lockstep {
namespace {

class Errors : public TinyRun {
 protected:
  // The run folder's files and sizes, but those of the log, which may grow.
  std::string contents(const std::string& run) {
    std::string list;
    std::vector<std::string> lines;
    std::error_code none;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_ / run, none))
      if (entry.is_regular_file() && entry.path().filename() != "log.txt" &&
          entry.path().filename() != "lock")
        lines.push_back(entry.path().string() + " " + std::to_string(entry.file_size()) + "\n");
    std::sort(lines.begin(), lines.end());
    for (const std::string& line : lines) list += line;
    return list;
  }

  void expect_refused(const Json& changes, Launch launch, int code,
                      const std::vector<std::string>& parts) {
    const std::string before = contents("run");
    configure("run", changes, launch);
    expect_one_line(train("run", launch), code, parts);
    EXPECT_EQ(contents("run"), before) << changes;
  }

  // Rank 0 and rank 1 with commands of their own.
  Ended two_ranks(const std::string& first, const std::string& second) const {
    const std::string mpirun = trainer(Launch::mpirun), program = trainer();
    const std::string launcher = mpirun.substr(0, mpirun.size() - program.size());
    const std::string one = launcher.substr(0, launcher.rfind("-np")) + "-np 1 ";
    return command(one + first + " : -np 1 " + second);
  }
};

TEST_F(Errors, AreToldOnceForAllRanks) {
  trained("run", {}, Launch::mpirun);
  const std::string rank = "trainer: rank 0 on " + host_of_tests() + ": ";
  expect_refused({{"optim", {{"lrr", 1}}}}, Launch::mpirun, 78,
                 {rank + "[config] run.json: unknown key \"optim.lrr\"; the nearest one is "
                         "\"optim.lr\""});
  expect_refused({{"train", {{"global_batch", 6}}}}, Launch::mpirun, 78,
                 {"[train.global_batch] 6 is not a multiple of micro_batch 2 x 2 ranks = 4; 4 and "
                  "8 are"});
  write_text(folder_ / "foreign.bin", std::string(5000, 'x'));
  expect_refused({{"data", {{"train", "foreign.bin"}}}}, Launch::mpirun, 65,
                 {"[data] foreign.bin starts with magic 2021161080"});
  expect_refused({{"checkpoint", {{"resume", "nowhere"}}}}, Launch::mpirun, 65,
                 {"trainer: rank 0 on host " + host_of_tests() +
                  ": [checkpoint] nowhere: no such folder; name one like RUN/checkpoints/step-"});
}

TEST_F(Errors, OfConfigs) {
  trained("run");
  const auto config_error = [&](const Json& changes, const std::string& message) {
    expect_refused(changes, Launch::alone, 78, {"trainer: " + message});
  };
  config_error({{"optim", {{"lr", "fast"}}}},
               "[config] run.json: optim.lr must be a number, found \"fast\"");
  config_error({{"optim", {{"lr", -1}}}},
               "[config] run.json: optim.lr must be from 0 to 1000, found -1");
  config_error({{"train", {{"device", "cuda"}}}}, "no CUDA device: ");
  config_error({{"model", {{"vocab_size", 100}}}},
               "[model.vocab_size] 100 is less than the 256 ids");
  config_error({{"train", {{"seq_len", 64}}}}, "[train.seq_len] 64 is more than model.max_seq_len");
}

TEST_F(Errors, OfData) {
  trained("run");
  const auto data_error = [&](const Json& changes, const std::vector<std::string>& parts) {
    expect_refused(changes, Launch::alone, 65, parts);
  };
  data_error({{"data", {{"train", "absent*.bin"}}}}, {"[data] no file matches absent*.bin"});
  data_error({{"model", {{"max_seq_len", 5000}}}, {"train", {{"seq_len", 5000}}}},
             {"[data.train] has ",
              " tokens, one window of train.seq_len 5000 needs 5001; use more "
              "text or train.seq_len of at most"});
  data_error({{"model", {{"init_from", "nowhere"}}}, {"run_dir", "fresh"}},
             {"[checkpoint] nowhere: no such folder"});

  write_text(folder_ / "text", std::string(4000, 'x') + "\n");
  prepare({.text = folder_ / "text", .out = folder_ / "tokens", .val_fraction = 0});
  const std::string shard = read_text(folder_ / "tokens/train_000000.bin");
  write_text(folder_ / "cut.bin", shard.substr(0, 3000));
  data_error({{"data", {{"train", "cut.bin"}}}},
             {"[data] cut.bin has 3000 bytes, its header announces 4001 tokens of 2 bytes"});
  // All of it is 'x' = 120, found in the first batch.
  data_error({{"data", {{"train", "tokens/train_*.bin"}, {"tokenizer", "none"}}},
              {"model", {{"vocab_size", 120}}},
              {"run_dir", "fresh"}},
             {"[data] tokens/train_000000.bin: token ",
              " has id 120, outside the vocabulary of 120; use the model.vocab_size of"});
  write_text(folder_ / "empty", "");
  expect_one_line(command(trainer() + " data --text empty --out empty_tokens"), 65,
                  {"[data] empty is empty; name a file with text"});
  EXPECT_FALSE(std::filesystem::exists(folder_ / "empty_tokens"));
}

// Before ids beyond the vocabulary would be found, which tell less.
TEST_F(Errors, OfAnotherTokenizerThanTheShards) {
  trained("run");
  std::string text;
  for (int i = 0; i < 400; ++i) text += "line number " + std::to_string(i) + " of the text\n";
  write_text(folder_ / "text", text);
  prepare({.text = folder_ / "text",
           .out = folder_ / "pieces",
           .tokenizer = "train",
           .vocab_size = 300,
           .val_fraction = 0});
  expect_refused({{"data", {{"train", "pieces/train_*.bin"}}}}, Launch::alone, 78,
                 {"[data.tokenizer] is bytes, but sentencepiece vocab=300 xxh3=",
                  " made the shards in pieces (made_from.txt there); use --set "
                  "data.tokenizer=pieces/tokenizer.model, or shards that this tokenizer made"});
  expect_refused({{"data", {{"tokenizer", "pieces/tokenizer.model"}}},
                  {"model", {{"vocab_size", 300}}},
                  {"train", {{"sample_tokens", 9}}}},
                 Launch::alone, 78,
                 {"[data.tokenizer] is sentencepiece vocab=300 xxh3=", ", but bytes made the "});
}

TEST_F(Errors, OfRanksThatDiffer) {
  configure("run", {}, Launch::mpirun);
  const std::string program = trainer() + " --config run.json ";
  expect_one_line(two_ranks(program, program + "--set model.d_model=64"), 78,
                  {"[config] rank 1 on host ", "has \"    \"d_model\": 64,\" where rank 0 on host ",
                   "all ranks must run the same"});
  expect_one_line(two_ranks(program, "-x OMP_DYNAMIC=true " + program), 78,
                  {"[environment] rank 1 on host ", "has \"OMP_DYNAMIC=true\" where rank 0"});
  // One byte behind its end does not change what a program does, but it is another program.
  std::filesystem::copy_file(trainer(), folder_ / "other_build");
  std::ofstream(folder_ / "other_build", std::ios::app) << 'x';
  expect_one_line(two_ranks(program, "./other_build --config run.json"), 78,
                  {"[build] rank 1 on host ", "program ", "all ranks must run the same"});
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
}

TEST_F(Errors, OfLaunchers) {
  configure("run", {}, Launch::mpirun);
  expect_one_line(command("env SLURM_NTASKS=2 " + trainer() + " --config run.json"), 78,
                  {"[launch] SLURM_NTASKS=2 announces 2 ranks"});
  configure("run");
  expect_one_line(train("run", Launch::mpirun), 78,
                  {"[dist.backend] local, but mpirun started 2 processes"});
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
}

TEST_F(Errors, OfASecondWriter) {
  configure("run", {{"train", {{"steps", 1'000'000}}}});
  Process first(folder_.path(), trainer() + " --config run.json");
  ASSERT_TRUE(first.wait_until([&] { return steps_done("run") >= 1; }));
  expect_one_line(train("run"), 75,
                  {"[run] run is in use by process " + std::to_string(first.pid()) + " on host "});
  first.send(SIGKILL);
  first.wait();
  // The lock goes with the process.
  trained("run", {{"train", {{"steps", 2}}}});
}

// Two jobs of two ranks each: the second is told so, and the first never notices.
TEST_F(Errors, OfASecondWriterUnderMpirun) {
  configure("run", {{"train", {{"steps", 1'000'000}}}}, Launch::mpirun);
  Process first(folder_.path(), trainer(Launch::mpirun) + " --config run.json");
  ASSERT_TRUE(first.wait_until([&] { return steps_done("run") >= 1; }));
  const pid_t rank_0 = rank_of_mpirun(first.pid(), 0);
  expect_one_line(train("run", Launch::mpirun), 75,
                  {"trainer: rank 0 on host " + host_of_tests() +
                       ": [run] run is in use by process " + std::to_string(rank_0) + " on host ",
                   "wait until that run has ended, or choose another run_dir"});
  const int64_t done = steps_done("run");
  EXPECT_TRUE(first.wait_until([&] { return steps_done("run") > done; }));
  first.send(SIGUSR1);
  EXPECT_EQ(first.wait().code, 75);
  EXPECT_EQ(checkpoints("run").size(), 1u);
}

TEST_F(Errors, OfAFullDisk) {
  trained("run", {{"train", {{"steps", 2}}}});
  configure("run", {{"train", {{"steps", 4}}}});
  // Blocks of 512 bytes, less than a checkpoint.
  expect_one_line(command("sh -c 'ulimit -f 600; exec " + trainer() + " --config run.json'"), 75,
                  {"[checkpoint] step 4 was not saved, older checkpoints are untouched: ",
                   "[file] cannot write run/checkpoints/step-00000004.tmp/rank-000.safetensors: "
                   "File too large after 307200 of ",
                   "make room and run the same command again"});
  EXPECT_EQ(checkpoints("run"), std::vector<std::string>{"step-00000002"});
  EXPECT_EQ(train("run").code, 0);
  EXPECT_EQ(checkpoints("run").back(), "step-00000004");
}

// MPI needs files of its own when it starts, so the limit comes later, to the rank that saves.
TEST_F(Errors, SoakOfAFullDiskUnderMpirun) {
  configure("run", {{"train", {{"steps", 1'000'000}}}, {"checkpoint", {{"every", 200}}}},
            Launch::mpirun);
  Process process(folder_.path(), trainer(Launch::mpirun) + " --config run.json");
  ASSERT_TRUE(process.wait_until([&] { return steps_done("run") >= 201; }));
  const std::string holder = read_text(folder_ / "run/lock");  // "process 123 on host ..."
  const rlimit limit = {300'000, 300'000};
  ASSERT_EQ(prlimit(std::stoi(holder.substr(8)), RLIMIT_FSIZE, &limit, nullptr), 0);
  expect_one_line(process.wait(), 75, {"was not saved, older checkpoints are untouched: "});
  EXPECT_EQ(checkpoints("run").back().size(), 13u) << "nothing half-written";
  EXPECT_EQ(command(trainer() + " generate --run run --prompt x --tokens 1").code, 0);
}

}  // namespace
}  // namespace lockstep
