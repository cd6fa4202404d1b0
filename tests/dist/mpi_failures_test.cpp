// Whole jobs that fail: mpirun's exit code and what the user reads. Each launch takes a second or
// two, most of it mpirun ending the other ranks.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <string>

namespace lockstep {
namespace {

struct Job {
  int code;
  std::string output;
  double seconds;
};

Job run(const std::string& how, const std::string& environment = "", bool mpirun = true) {
  const std::string launcher = mpirun ? LOCKSTEP_MPIRUN_COMMAND " -np 2 " : "";
  const std::string command = environment + " " + launcher + FAILING_RANK " " + how + " 2>&1";
  const auto start = std::chrono::steady_clock::now();
  FILE* pipe = popen(command.c_str(), "r");
  std::string output = "\n";
  std::array<char, 4096> buffer;
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe))
    output.append(buffer.data(), n);
  const int code = WEXITSTATUS(pclose(pipe));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  return {code, output, took.count()};
}

void expect_contains(const std::string& output, const std::string& text) {
  EXPECT_NE(output.find(text), std::string::npos) << output;
}

TEST(MpiFailures, AGoodJobEndsWithZeroAndSilence) {
  const Job job = run("none");
  EXPECT_EQ(job.code, 0);
  EXPECT_EQ(job.output, "\n");
}

TEST(MpiFailures, ARankThatThrowsEndsTheJobWithItsMessageAndCode) {
  const Job job = run("throw");
  EXPECT_EQ(job.code, 65);
  expect_contains(job.output, "[data] shard 7 is truncated");
}

// Rank 0 hears of it in rank 1's own words, and would write them to its log.
TEST(MpiFailures, ARankOnAnotherHostEndsTheJobWithItsMessageAndCode) {
  const Job job = run("throw 20 1");
  EXPECT_EQ(job.code, 65);
  EXPECT_LT(job.seconds, 10);
  expect_contains(job.output, "\n[data] shard 7 is truncated\n");
  expect_contains(job.output, "[dist] rank 1 on host ");
  expect_contains(job.output, "#1 failed: [data] shard 7 is truncated\n");
}

TEST(MpiFailures, ARankThatHangsOrIsStoppedIsNamedWithinTheTimeOut) {
  for (const char* how : {"hang", "stop 0.5 1"}) {
    SCOPED_TRACE(how);
    const Job job = run(how);
    EXPECT_EQ(job.code, 75);
    expect_contains(job.output, "[all_reduce (exchange)] rank 0 on host ");
    expect_contains(job.output, " waited 0.5 s for rank 1 on host ");
    expect_contains(job.output, " in step 12 (all_reduce (exchange) 1 of window 'bucket 0', ");
    expect_contains(job.output, "or slower than dist.timeout_s = 0.5 allows");
  }
}

TEST(MpiFailures, ARankThatNeverComesIsNoticedByTheWatchdog) {
  const Job job = run("absent");
  EXPECT_EQ(job.code, 75);
  expect_contains(job.output, "[watchdog] rank 0 on host ");
  expect_contains(job.output,
                  ": the start of MPI has not returned for 3.0 s, longer than "
                  "dist.start_timeout_s allows");
}

TEST(MpiFailures, AKilledRankEndsTheJob) {
  const Job job = run("kill");
  // Whichever comes first: mpirun's word for SIGKILL or a peer's time-out. Both mean "restart".
  EXPECT_TRUE(job.code == 137 || job.code == 75) << job.code;
}

TEST(MpiFailures, TooLittleSharedMemoryIsAnErrorAtOnce) {
  const Job job = run("memory");
  EXPECT_EQ(job.code, 78);
  expect_contains(job.output, "[dist] rank 1 on host ");
  expect_contains(job.output,
                  "has no shared memory for window 'bucket 1': ftruncate: File too large; use a "
                  "smaller dist.bucket_mb or model");
}

TEST(MpiFailures, AForeignLauncherIsRefused) {
  const Job job = run("none", "env -u OMPI_COMM_WORLD_SIZE PMI_SIZE=4", false);
  EXPECT_EQ(job.code, 78) << job.output;
  expect_contains(job.output, "[launch] PMI_SIZE=4 announces 4 ranks");
}

}  // namespace
}  // namespace lockstep
