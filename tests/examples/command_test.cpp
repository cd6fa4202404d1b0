// The built `trainer`, run as a user runs it: what it prints and the code it ends with.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace lockstep {
namespace {

struct Result {
  int code = -1;
  std::string output, errors;
};

class Command : public testing::Test {
 protected:
  Command() : folder_(testing::TempDir() + "command_" + std::to_string(getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~Command() override { std::filesystem::remove_all(folder_); }

  Result trainer(const std::string& arguments, const std::string& environment = "") const {
    const std::string errors = folder_ + "/errors";
    const std::string command = "cd " + std::string(LOCKSTEP_SOURCE_DIR) + " && env " +
                                environment + " " + LOCKSTEP_BINARY_DIR + "/examples/trainer " +
                                arguments + " 2> " + errors;
    Result result;
    FILE* pipe = popen(command.c_str(), "r");
    std::array<char, 4096> buffer;
    while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe))
      result.output.append(buffer.data(), n);
    result.code = WEXITSTATUS(pclose(pipe));
    result.errors = read(errors);
    return result;
  }

  // Fails with one line on stderr and nothing on stdout.
  void expect_failure(const std::string& arguments, int code, const std::string& message) const {
    const Result result = trainer(arguments);
    EXPECT_EQ(result.code, code) << arguments;
    EXPECT_EQ(result.errors, "trainer: " + message + "\n");
    EXPECT_EQ(result.output, "") << arguments;
  }

  static std::string read(const std::string& file) {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  std::string folder_;
};

TEST_F(Command, EachHasHelpWithAnExample) {
  for (const std::string name : {"", "bench", "bench comm", "data", "export", "train"}) {
    const Result result = trainer(name + " --help");
    EXPECT_EQ(result.code, 0) << name;
    EXPECT_EQ(result.errors, "");
    EXPECT_NE(result.output.find("Usage: trainer " + name), std::string::npos) << result.output;
    EXPECT_NE(result.output.rfind("trainer " + name), result.output.find("trainer " + name))
        << "no example in\n"
        << result.output;
  }
}

TEST_F(Command, WithoutArgumentsItShowsHelpAndFails) {
  const Result result = trainer("");
  EXPECT_EQ(result.code, 64);
  EXPECT_NE(result.errors.find("Subcommands:"), std::string::npos);
}

TEST_F(Command, WrongCommandLines) {
  expect_failure("tarin", 64,
                 "no subcommand \"tarin\"; the nearest one is \"train\", see `trainer --help`");
  expect_failure("--confgi", 64,
                 "The following argument was not expected: --confgi; see `trainer train --help`");
  expect_failure("bench comm -z", 64,
                 "The following argument was not expected: -z; see `trainer bench comm --help`");
  expect_failure("bench", 64, "A subcommand is required; see `trainer bench --help`");
  expect_failure("data --text x", 64, "--out is required; see `trainer data --help`");
  expect_failure("train", 64,
                 "[train] no --config; name a run config, such as configs/quickstart.json");
  expect_failure("--config configs/quickstart.json --set optim.lr", 64,
                 "[config] --set optim.lr: write --set key=value, such as --set optim.lr=1e-3");
}

TEST_F(Command, WrongConfigs) {
  expect_failure("--config no.json", 78,
                 "[config] no.json: no such file, or it cannot be read; name a JSON run config");
  expect_failure("train --config configs/quickstart.json --set train.step=3", 78,
                 "[config] --set: unknown key \"train.step\"; the nearest one is \"train.steps\"");
}

TEST_F(Command, ARankOfSeveralNamesItselfAndItsHost) {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  const Result result = trainer("tarin", "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=0");
  EXPECT_EQ(result.errors.find("trainer: rank 0 on " + std::string(host) + ": no subcommand"), 0u);
}

TEST_F(Command, PrintConfigGivesAConfigThatPrintsTheSame) {
  const Result first = trainer(
      "--config configs/quickstart.json --set optim.lr=0.1 "
      "--set optim.betas=[0.5,0.75] --print-config");
  EXPECT_EQ(first.code, 0) << first.errors;
  const auto json = nlohmann::json::parse(first.output);
  EXPECT_EQ(json["optim"]["lr"], 0.1);
  EXPECT_EQ(json["optim"]["betas"], (std::vector<double>{0.5, 0.75}));
  EXPECT_EQ(json["model"]["arch"], "gpt2");
  std::ofstream(folder_ + "/full.json") << first.output;
  EXPECT_EQ(trainer("train --print-config --config " + folder_ + "/full.json").output,
            first.output);
}

TEST_F(Command, HelpConfigNeedsNoConfig) {
  const Result result = trainer("train --help-config");
  EXPECT_EQ(result.code, 0);
  EXPECT_NE(result.output.find("  log.every = 10"), std::string::npos);
}

TEST_F(Command, DataWorksOnce) {
  std::ofstream(folder_ + "/text") << "In the beginning\nthere was text\n";
  const std::string command = "data --text " + folder_ + "/text --out " + folder_ + "/tokens";
  const Result first = trainer(command + " --val-fraction 0.5 --shard-tokens 1k");
  EXPECT_EQ(first.code, 0) << first.errors;
  EXPECT_NE(first.output.find("\"train\": \"" + folder_ + "/tokens/train_*.bin\""),
            std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/tokens/val_000000.bin"));
  const Result second = trainer(command + " --val-fraction 0.5 --shard-tokens 1000");
  EXPECT_EQ(second.output, folder_ + "/tokens: up to date\n");
  const Result third = trainer(command);
  EXPECT_EQ(third.code, 65);
  EXPECT_EQ(third.errors, "trainer: [data] " + folder_ +
                              "/tokens exists and is not an empty folder (made with val_fraction "
                              "= 0.5, asked for val_fraction = 0.1); remove it or name another "
                              "out\n");
}

// The same code as of a run whose disk is full, and the same command goes on after making room.
TEST_F(Command, DataOnAFullDisk) {
  std::ofstream(folder_ + "/text") << std::string(200'000, 'x') << "\n";
  const std::string command = "data --text " + folder_ + "/text --out " + folder_ + "/tokens";
  const Result full = trainer(command, "sh -c 'ulimit -f 100; exec \"$@\"' sh");  // of 512 bytes
  EXPECT_EQ(full.code, 75);
  EXPECT_EQ(full.errors.find("trainer: [file] cannot write " + folder_ +
                             "/tokens.partial/train_000000.bin.partial: File too large after "),
            0u)
      << full.errors;
  EXPECT_NE(full.errors.find("make room and run the same command again"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/tokens.partial"));
  EXPECT_EQ(trainer(command).code, 0);
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/tokens/train_000000.bin"));
}

TEST_F(Command, BenchWhoseJsonCannotBeWritten) {
  const std::string bench = "bench comm --backend local -b 4K -e 4K -n 1 -w 0 --json ";
  const Result full = trainer(bench + "/dev/full");
  EXPECT_EQ(full.code, 75);
  EXPECT_EQ(
      full.errors,
      "trainer: [rank 0] [file] cannot write /dev/full: No space left on device; make room and run "
      "the same command again\n");
  const Result absent = trainer(bench + folder_ + "/absent/x.json");
  EXPECT_EQ(absent.code, 78);
  EXPECT_EQ(absent.errors, "trainer: [rank 0] [file] cannot write " + folder_ +
                               "/absent/x.json: No such file or directory; check the folder and "
                               "its rights\n");
}

// What is written to a full disk is not done.
TEST_F(Command, OutputThatDoesNotArriveIsAnError) {
  for (const std::string arguments :
       {"--help", "train --print-config --config configs/quickstart.json", "train --help-config"}) {
    const Result result = trainer(arguments + " > /dev/full");
    EXPECT_EQ(result.code, 75) << arguments;
    EXPECT_EQ(result.errors,
              "trainer: [file] cannot write standard output: No space left on device; make room "
              "and run the same command again\n");
  }
}

// A closed stdout's number goes to the next file opened: nothing may be printed into that.
TEST_F(Command, WithoutStandardOutputFilesStayWhole) {
  std::ofstream(folder_ + "/text") << "In the beginning\nthere was text\n";
  EXPECT_EQ(trainer("data --text " + folder_ + "/text --out " + folder_ + "/tokens >&-").code, 0);
  EXPECT_EQ(read(folder_ + "/tokens/made_from.txt").substr(0, 7), "text = ");
}

TEST_F(Command, BenchCommOfOneRankIsRefused) {
  expect_failure("bench comm --backend local --ranks 1", 64,
                 "[bench comm] one rank exchanges nothing; start several with mpirun -np 2, or use "
                 "--backend local");
}

TEST_F(Command, BenchCommRefusesRanksThatMpirunStarts) {
  expect_failure(
      "bench comm --ranks 4", 64,
      "[bench comm] --ranks means nothing to backend mpi, whose ranks mpirun starts; use "
      "its -np, or --backend local");
}

TEST_F(Command, VersionTellsTheBuild) {
  const Result result = trainer("--version");
  EXPECT_EQ(result.code, 0) << result.errors;
  EXPECT_TRUE(result.output.starts_with("commit ")) << result.output;
}

TEST_F(Command, BenchCommWritesWhatItShows) {
  const std::string json = folder_ + "/comm.json";
  const Result result = trainer("bench comm --backend local -b 4K -e 8K -n 2 -w 0 --json " + json);
  EXPECT_EQ(result.code, 0) << result.errors;
  EXPECT_EQ(result.output.rfind("# 2 ranks on 1 host, backend local\n", 0), 0u);
  const auto rows = nlohmann::json::parse(read(json))["rows"];
  ASSERT_EQ(rows.size(), 8u);
  EXPECT_EQ(rows[0]["collective"], "all_reduce");
  EXPECT_EQ(rows[0]["bytes"], 4096);
  EXPECT_EQ(rows[7]["bytes"], 8192);
  for (const auto& row : rows) EXPECT_EQ(row["ours"]["wrong"], 0);
}

TEST_F(Command, BenchCommMeasuresNoSizeTwice) {
  const std::string json = folder_ + "/sizes.json";
  const Result result =
      trainer("bench comm --backend local -b 1000 -e 1010 -f 1.0001 -n 1 -w 0 --json " + json);
  EXPECT_EQ(result.code, 0) << result.errors;
  std::set<int> floats;
  const auto rows = nlohmann::json::parse(read(json))["rows"];
  for (const auto& row : rows) floats.insert(row["bytes"].get<int>() / 4);
  EXPECT_EQ(floats, (std::set<int>{250, 251, 252}));
  EXPECT_EQ(rows.size(), 3 * 4u);
}

TEST_F(Command, NumbersMustBeNumbers) {
  for (const std::string bench :
       {"bench comm --backend local -f ", "bench comm --backend local --codec rows --touched ",
        "bench step --link-mbit ", "bench gemm --seconds "})
    for (const std::string value : {"nan", "inf"}) {
      const Result result = trainer(bench + value);
      EXPECT_EQ(result.code, 64) << bench << value;
      EXPECT_NE(result.errors.find("not a finite number"), std::string::npos) << result.errors;
    }
}

TEST_F(Command, BenchCommShowsWhatCodecsCostAndSave) {
  const std::string json = folder_ + "/codecs.json";
  const Result result = trainer(
      "bench comm --backend local --codec all --touched 0.125 -b 1M -e 1M -n 2 -w 0 --json " +
      json);
  EXPECT_EQ(result.code, 0) << result.errors;
  EXPECT_EQ(result.output.rfind("# 2 ranks on 1 host, backend local\n"
                                "# 1 thread per rank, topk ratio 0.01, share of rows touched "
                                "0.125\n",
                                0),
            0u);
  EXPECT_NE(result.output.find("    bf16      1048576       524288    2.00 |"), std::string::npos)
      << result.output;
  const auto written = nlohmann::json::parse(read(json));
  EXPECT_EQ(written["ranks"], 2);
  EXPECT_EQ(written["touched"], 0.125);
  // 64 cells; rows: a table of 4 bytes per cell, a bitmap of 16 and one of eight rows of 512
  // floats.
  const std::vector<std::pair<std::string, int>> expected = {
      {"none", 64 * 16384},           {"bf16", 64 * 8192}, {"int8", 64 * 4112}, {"topk", 64 * 176},
      {"rows", 64 * (4 + 16 + 2048)}, {"sign", 64 * 528}};
  const auto& rows = written["rows"];
  ASSERT_EQ(rows.size(), expected.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i]["codec"], expected[i].first);
    EXPECT_EQ(rows[i]["wire_bytes"], expected[i].second) << expected[i].first;
    EXPECT_EQ(rows[i]["wrong"], 0) << expected[i].first;
    const double us = rows[i]["encode_us"].get<double>() + rows[i]["decode_us"].get<double>();
    const double rate = (1048576.0 - expected[i].second) / us * 1e-3;  // GB/s
    EXPECT_NEAR(rows[i]["break_even_gb_s"].get<double>(), rate, 1e-9 * rate);
  }
  EXPECT_NE(result.output.find("never"), std::string::npos) << "none cannot pay";
}

TEST_F(Command, BenchCommRefusesWhatItCannotCode) {
  const std::string bench = "bench comm --backend local ";
  expect_failure(bench + "--codec int4", 64,
                 "--codec: int4 not in {all,none,bf16,int8,topk,rows,sign}; see `trainer bench "
                 "comm --help`");
  expect_failure(bench + "--codec topk --ratio 2", 78,
                 "[codec] topk with ratio 2; give a share above 0 and up to 1");
  expect_failure(bench + "--codec sign --ratio 0.1", 64,
                 "[bench comm] --ratio means nothing to codec sign; use --codec topk or all");
  expect_failure(bench + "--ratio 0.1", 64,
                 "--ratio requires --codec; see `trainer bench comm --help`");
  expect_failure(bench + "--codec all --mpi-out-of-place", 64,
                 "--mpi-out-of-place excludes --codec; see `trainer bench comm --help`");
}

}  // namespace
}  // namespace lockstep
