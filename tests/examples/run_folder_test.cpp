// One writer per run folder, and files that are replaced as a whole.
#include "examples/run_folder.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dist/launch.h"
#include "examples/output_file.h"
#include "tests/file_test_util.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

TEST(RunFolder, IsCreatedAndUsedAgain) {
  TempFolder folder;
  for (int round = 0; round < 2; ++round) {
    RunFolder run(folder / "a/b");
    EXPECT_TRUE(fs::is_directory(folder / "a/b/checkpoints"));
    EXPECT_EQ(run.checkpoint_path(5), folder / "a/b/checkpoints/step-00000005");
    EXPECT_EQ(read_text(folder / "a/b/lock"),
              fmt::format("process {} on host {}\n", getpid(), host_name()));
    run.write_config(fmt::format("{{\"round\": {}}}\n", round));
    EXPECT_EQ(read_text(folder / "a/b/config.json"), fmt::format("{{\"round\": {}}}\n", round));
    EXPECT_FALSE(fs::exists(run.config_path() + ".tmp"));
  }
}

TEST(RunFolder, OtherProcessHoldsIt) {
  TempFolder folder;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    RunFolder run(folder / "x");
    char byte = 1;
    if (write(ready[1], &byte, 1) == 1) pause();
    _exit(1);
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  expect_error(Exit::restart,
               {"[run] " + (folder / "x") + " is in use by " +
                    fmt::format("process {} on host {}, or", child, host_name()),
                "choose another run_dir"},
               [&] { RunFolder run(folder / "x"); });
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_NO_THROW(RunFolder(folder / "x"));  // no lock survives its process
}

TEST(RunFolder, ARankThatWasLeftBehindHoldsItToo) {
  TempFolder folder;
  auto first = std::make_unique<RunFolder>(folder / "x");
  auto rank_1 = std::make_unique<RunMember>(folder / "x", 1);
  auto rank_2 = std::make_unique<RunMember>(folder / "x", 2);
  first.reset();
  rank_1.reset();
  expect_error(Exit::restart, {"is in use by ", ", or by ranks that it left behind; wait"},
               [&] { RunFolder run(folder / "x"); });
  rank_2.reset();
  RunFolder run(folder / "x");
  EXPECT_NO_THROW(RunMember(folder / "x", 2));
}

TEST(RunFolder, CannotBeCreated) {
  TempFolder folder;
  write_text(folder / "file", "");
  expect_error(Exit::config, {"cannot create " + (folder / "file/x"), "Not a directory"},
               [&] { RunFolder run(folder / "file/x"); });
  expect_error(Exit::config, {"cannot create " + (folder / "file")},
               [&] { RunFolder run(folder / "file"); });
}

TEST(OutputFile, WhatTheSystemRefuses) {
  TempFolder folder;
  expect_error(Exit::restart,
               {"[file] cannot write /dev/full: No space left on device after 0 of 10 bytes; make "
                "room and run the same command again"},
               [] { OutputFile("/dev/full", 10).write("12345", 5); });
  expect_error(Exit::config, {"cannot write " + (folder / "no/x"), "check the folder"},
               [&] { replace_file(folder / "no/x", "text"); });
  expect_error(Exit::config, {"cannot sync " + (folder / "no")}, [&] { sync_path(folder / "no"); });
  expect_error(Exit::data, {"cannot open " + (folder / "no")}, [&] { sum_of_file(folder / "no"); });
  expect_error(Exit::internal, {"is finished already"}, [&] {
    OutputFile file(folder / "x", 0);
    file.finish();
    file.finish();
  });
}

}  // namespace
}  // namespace lockstep
