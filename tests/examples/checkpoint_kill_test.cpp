// Whoever is killed while saving, and whenever, leaves complete checkpoints; so does a disk that is
// full.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <random>

#include "tests/examples/checkpoint_data.h"

namespace lockstep {
namespace {

using namespace test;

// Runs `body` in a process of its own.
pid_t start_child(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  return child;
}

// How it ended, as waitpid tells it.
int end_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

// A limit of the file size stands for a full disk: the system refuses the write in the same place.
TEST(Checkpoint, DiskFull) {
  TempFolder folder;
  save(folder.path(), 1);
  const pid_t child = start_child([&] {
    const rlimit limit{100'000, 100'000};
    setrlimit(RLIMIT_FSIZE, &limit);
    run_local(1, {}, [&](Communicator& c) {
      expect_error(Exit::restart,
                   {"[checkpoint] step 2 was not saved, older checkpoints are untouched: [file] "
                    "cannot write " +
                        (folder / "step-00000002.tmp/rank-000.safetensors"),
                    "File too large after 100000 of 400140 bytes",
                    "make room and run the same command again"},
                   [&] { save_checkpoint(c, request(folder.path(), 0, 2, 1, 100'000)); });
    });
  });
  EXPECT_EQ(end_of(child), 0);
  EXPECT_EQ(names_in(folder.path()), Names{"step-00000001"});
  expect_holds(*latest(folder.path()), 1);
}

// kill -9 at random moments of a process that does nothing but save: the newest checkpoint is
// always complete, never older than what the process had announced, and the next start goes on.
void kill_loop(int kills, int ranks, bool same_step) {
  TempFolder folder;
  std::mt19937 random(ranks + 2 * same_step);
  int64_t least = 0, leftovers = 0;
  for (int k = 0; k < kills; ++k) {
    int announce[2];
    ASSERT_EQ(pipe(announce), 0);
    const auto before = latest(folder.path());
    const int64_t first = before ? before->step + !same_step : 1;
    const pid_t child = start_child([&] {
      run_local(ranks, {}, [&](Communicator& c) {
        for (int64_t step = first;; step += !same_step) {
          save_checkpoint(c, request(folder.path(), c.rank(), step, 1, 20'000));
          if (c.rank() == 0 && write(announce[1], &step, sizeof step) < 0) _exit(1);
        }
      });
    });
    close(announce[1]);
    if (k % 2 == 0) {  // let it save at least once, then kill it somewhere in the next
      int64_t step = 0;
      ASSERT_EQ(read(announce[0], &step, sizeof step), static_cast<ssize_t>(sizeof step));
      least = step;
    }
    usleep(random() % 30'000);
    kill(child, SIGKILL);
    EXPECT_TRUE(WIFSIGNALED(end_of(child)));
    for (int64_t step; read(announce[0], &step, sizeof step) > 0;) least = step;
    close(announce[0]);

    leftovers += clear_leftovers(folder.path()).size();
    std::vector<std::string> why;
    const auto newest = latest(folder.path(), &why);
    EXPECT_TRUE(why.empty()) << why[0];
    if (least == 0) continue;
    ASSERT_TRUE(newest);
    EXPECT_GE(newest->step, least);
    expect_holds(*newest, newest->step, ranks);
    for (const std::string& name : names_in(folder.path())) EXPECT_EQ(name.size(), 13u) << name;
  }
  // Else no kill ever came during a save. Few kills may miss it on a busy machine.
  EXPECT_TRUE(leftovers > 0 || kills < 100);
}

// The number of kills is LOCKSTEP_KILLS; the soak run asks for more.
int kills() {
  const char* text = std::getenv("LOCKSTEP_KILLS");
  return text ? std::atoi(text) : 10;
}

TEST(CheckpointKill, NewSteps) {
  kill_loop(kills(), 1, false);
}
TEST(CheckpointKill, TwoRanks) {
  kill_loop(kills(), 2, false);
}
TEST(CheckpointKill, TheSameStepAgain) {
  kill_loop(kills(), 1, true);
}

}  // namespace
}  // namespace lockstep
