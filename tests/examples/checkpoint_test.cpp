// A checkpoint is complete or does not exist: saving, finding, keeping the newest, and ranks that
// fail. Read next: checkpoint_damage_test.cpp.
#include "tests/examples/checkpoint_data.h"

namespace lockstep {
namespace {

using namespace test;
namespace fs = std::filesystem;

TEST(Checkpoint, SavedByTwoRanksAndFoundAgain) {
  TempFolder folder;
  EXPECT_FALSE(latest(folder.path()));
  EXPECT_FALSE(latest(folder / "absent"));
  save(folder.path(), 5, 2);
  save(folder.path(), 10, 2);
  expect_holds(*latest(folder.path()), 10, 2);
  expect_holds(open_checkpoint(folder / "step-00000005"), 5, 2);
  EXPECT_EQ(names_in(folder / "step-00000010"),
            (Names{"manifest.json", "rank-000.safetensors", "rank-001.safetensors"}));
  expect_error(Exit::data, {"no file rank-002.safetensors in this checkpoint of 2 ranks"},
               [&] { latest(folder.path())->open("rank-002.safetensors"); });
}

TEST(Checkpoint, KeepLast) {
  TempFolder folder;
  for (int64_t step : {10, 20, 40}) save(folder.path(), step);
  save(folder.path(), 30, 1, 2);  // after a resume from 20, say: the later one stays
  EXPECT_EQ(names_in(folder.path()), (Names{"step-00000020", "step-00000030", "step-00000040"}));
  save(folder.path(), 50, 1, 1);
  EXPECT_EQ(names_in(folder.path()), Names{"step-00000050"});
  save(folder.path(), 123456789, 1, 2);
  EXPECT_EQ(names_in(folder.path()), (Names{"step-00000050", "step-123456789"}));
  EXPECT_EQ(latest(folder.path())->step, 123456789);
}

TEST(Checkpoint, WhatFailsAfterwardsDoesNotUnmakeIt) {
  TempFolder folder;
  save(folder.path(), 1);
  write_text(folder / "step-00000001.tmp", "where the older one would be moved to");
  run_local(1, {}, [&](Communicator& c) {
    expect_error(Exit::config,
                 {"[checkpoint] step 2 was saved, but not cleared of older ones: ",
                  "cannot rename to " + (folder / "step-00000001.tmp")},
                 [&] { save_checkpoint(c, request(folder.path(), 0, 2, 1)); });
  });
  EXPECT_EQ(latest(folder.path())->step, 2);
}

TEST(Checkpoint, LaterOnesAreSetAside) {
  TempFolder folder;
  for (int64_t step : {1, 2, 3}) save(folder.path(), step);
  EXPECT_EQ(set_later_aside(folder.path(), 2).size(), 1u);
  EXPECT_EQ(latest(folder.path())->step, 2);
  save(folder.path(), 3);
  EXPECT_EQ(
      set_later_aside(folder.path(), 1),
      (std::vector{"set " + (folder / "step-00000003") + " aside as " +
                       (folder / "step-00000003.abandoned-2") + ": this run goes on from step 1",
                   "set " + (folder / "step-00000002") + " aside as " +
                       (folder / "step-00000002.abandoned") + ": this run goes on from step 1"}));
  EXPECT_TRUE(clear_leftovers(folder.path()).empty());
  EXPECT_EQ(names_in(folder.path()),
            (Names{"step-00000001", "step-00000002.abandoned", "step-00000003.abandoned",
                   "step-00000003.abandoned-2"}));
}

TEST(Checkpoint, SameStepIsReplaced) {
  TempFolder folder;
  save(folder.path(), 10, 2);
  fs::resize_file(folder / "step-00000010/rank-001.safetensors", 50);
  save(folder.path(), 10);
  expect_holds(*latest(folder.path()), 10);
  EXPECT_EQ(names_in(folder.path()), Names{"step-00000010"});
}

TEST(Checkpoint, LeftoversAreCleared) {
  TempFolder folder;
  save(folder.path(), 1);
  save(folder.path(), 2);
  fs::copy(folder / "step-00000001", folder / "step-00000003.tmp");    // killed while saving
  fs::copy(folder / "step-00000001", folder / "step-00000001.old");    // replaced, not removed yet
  fs::rename(folder / "step-00000002", folder / "step-00000002.old");  // moved aside, not replaced
  fs::create_directory(folder / "step-00000003x.tmp");                 // none of ours
  EXPECT_EQ(clear_leftovers(folder.path()),
            (Names{"removed " + (folder / "step-00000001.old, left by a run that was killed"),
                   "restored " + (folder / "step-00000002, which was about to be replaced"),
                   "removed " + (folder / "step-00000003.tmp, left by a run that was killed")}));
  EXPECT_EQ(names_in(folder.path()),
            (Names{"step-00000001", "step-00000002", "step-00000003x.tmp"}));
  expect_holds(*latest(folder.path()), 2);
  EXPECT_TRUE(clear_leftovers(folder / "absent").empty());
}

// One rank cannot write: both get the same error, and nothing of the step stays.
TEST(Checkpoint, OneRankFails) {
  TempFolder folder;
  save(folder.path(), 1, 2);
  std::vector<std::string> messages(2);
  run_local(2, {}, [&](Communicator& c) {
    SaveRequest r = request(folder.path(), c.rank(), 2, 1);
    if (c.rank() == 1) r.files[0].name = std::string(300, 'x');  // longer than a name may be
    try {
      save_checkpoint(c, r);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::config);
      messages[c.rank()] = error.what();
    }
  });
  EXPECT_EQ(messages[0], messages[1]);
  for (const char* part :
       {"[checkpoint] step 2 was not saved, older checkpoints are untouched: rank 1 on",
        "[file] cannot write", "File name too long"})
    EXPECT_NE(messages[0].find(part), std::string::npos) << messages[0];
  EXPECT_EQ(names_in(folder.path()), Names{"step-00000001"});
  expect_holds(*latest(folder.path()), 1, 2);
}

TEST(Checkpoint, TwoRanksWithOneFileName) {
  TempFolder folder;
  run_local(2, {}, [&](Communicator& c) {
    expect_error(Exit::internal, {"two ranks wrote rank-000.safetensors"},
                 [&] { save_checkpoint(c, request(folder.path(), 0, 1)); });
  });
  EXPECT_TRUE(names_in(folder.path()).empty());
}

}  // namespace
}  // namespace lockstep
