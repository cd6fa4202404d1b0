// A checkpoint is complete or does not exist: whoever is killed, whatever is damaged.
#include "examples/checkpoint.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>

#include "dist/local.h"
#include "examples/agree.h"
#include "tests/file_test_util.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// What rank `rank` would save after `step`: values tell both.
std::vector<NamedTensor> state(int rank, int64_t step, int64_t elements = 100) {
  const float value = static_cast<float>(1000 * rank + step);
  return {{"w", Tensor::from<float>(std::vector<float>(elements, value), {elements})},
          {"t", Tensor::from<int32_t>({static_cast<int32_t>(step)}, {1})}};
}

std::string file_of(int rank) {
  return fmt::format("rank-{:03}.safetensors", rank);
}

SaveRequest request(const std::string& folder, int rank, int64_t step, int64_t keep_last = 0,
                    int64_t elements = 100) {
  return {folder,
          step,
          {{file_of(rank), state(rank, step, elements)}},
          fmt::format("{{\"tokens\": {}}}", step * 7),
          keep_last};
}

void save(const std::string& folder, int64_t step, int ranks = 1, int64_t keep_last = 0) {
  run_local(ranks, {}, [&](Communicator& c) {
    const std::string path = save_checkpoint(c, request(folder, c.rank(), step, keep_last));
    EXPECT_EQ(path, fmt::format("{}/step-{:08}", folder, step));
  });
}

void expect_holds(const Checkpoint& checkpoint, int64_t step, int ranks = 1) {
  EXPECT_EQ(checkpoint.step, step);
  EXPECT_EQ(checkpoint.ranks, ranks);
  EXPECT_EQ(checkpoint.metadata, fmt::format("{{\"tokens\":{}}}", step * 7));
  for (int r = 0; r < ranks; ++r) {
    const SafetensorsFile file = checkpoint.open(file_of(r));
    const auto w = file.load("w").to_vector<float>();
    EXPECT_EQ(w, std::vector<float>(w.size(), static_cast<float>(1000 * r + step)));
    EXPECT_EQ(file.load("t").item<int32_t>(), step);
  }
}

std::optional<Checkpoint> latest(const std::string& folder, std::vector<std::string>* why = {}) {
  return find_latest_checkpoint(folder, [&](const std::string& text) {
    if (why) why->push_back(text);
  });
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

using Names = std::vector<std::string>;

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

// Damages the newest of two checkpoints; the reason must be told and the older one be found.
void expect_walks_back(const std::string& reason, const std::function<void(std::string)>& damage) {
  SCOPED_TRACE(reason);
  TempFolder folder;
  save(folder.path(), 1, 2);
  save(folder.path(), 2, 2);
  damage(folder / "step-00000002");
  std::vector<std::string> why;
  expect_holds(*latest(folder.path(), &why), 1, 2);
  ASSERT_EQ(why.size(), 1u);
  EXPECT_NE(why[0].find("[checkpoint] " + (folder / "step-00000002: ") + reason), std::string::npos)
      << why[0];
  expect_error(Exit::data, {reason}, [&] { open_checkpoint(folder / "step-00000002"); });
}

void edit(const std::string& path, const std::function<void(std::string&)>& change) {
  std::string text = read_text(path);
  change(text);
  write_text(path, text);
}

TEST(Checkpoint, WalksBackFromWhatIsNotComplete) {
  expect_walks_back("no manifest.json", [](auto path) { fs::remove(path + "/manifest.json"); });
  expect_walks_back("manifest.json is damaged", [](auto path) {
    fs::resize_file(path + "/manifest.json", fs::file_size(path + "/manifest.json") / 2);
  });
  expect_walks_back("manifest.json is damaged",
                    [](auto path) { fs::resize_file(path + "/manifest.json", 0); });
  expect_walks_back("manifest.json is damaged", [](auto path) {
    edit(path + "/manifest.json", [](auto& text) { text.replace(text.find("14"), 2, "15"); });
  });
  expect_walks_back("rank-001.safetensors cannot be read: No such file",
                    [](auto path) { fs::remove(path + "/rank-001.safetensors"); });
  expect_walks_back("rank-001.safetensors has 555 bytes, the manifest says",
                    [](auto path) { fs::resize_file(path + "/rank-001.safetensors", 555); });
  expect_walks_back("rank-000.safetensors is damaged: its checksum is", [](auto path) {
    edit(path + "/rank-000.safetensors", [](auto& text) { text.back() ^= 1; });
  });
}

TEST(Checkpoint, OtherFormatVersion) {
  TempFolder folder;
  save(folder.path(), 1);
  edit(folder / "step-00000001/manifest.json", [](std::string& text) {
    auto manifest = nlohmann::json::parse(text);
    manifest["checkpoint"]["version"] = 2;
    const std::string content = manifest["checkpoint"].dump();
    manifest["xxh3"] = fmt::format("{:016x}", XXH3_64bits(content.data(), content.size()));
    text = manifest.dump();
  });
  expect_error(Exit::data, {"version 2 of the format, this program reads version 1"},
               [&] { open_checkpoint(folder / "step-00000001"); });
}

// Any single bit of any file: refused, or (white space of the manifest) without effect.
TEST(Checkpoint, FlippedBits) {
  TempFolder folder;
  save(folder.path(), 1, 2);
  const std::string path = folder / "step-00000001";
  std::mt19937 random(1);
  for (const std::string& name : names_in(path)) {
    const std::string good = read_text(path + "/" + name);
    for (size_t part = 0; part < 100; ++part) {
      const size_t begin = part * good.size() / 100, end = (part + 1) * good.size() / 100;
      std::string bad = good;
      bad[begin + random() % std::max<size_t>(end - begin, 1)] ^= 1 << random() % 8;
      fs::remove(path + "/" + name);
      write_text(path + "/" + name, bad);
      try {
        expect_holds(open_checkpoint(path), 1, 2);
        EXPECT_EQ(name, "manifest.json");
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Exit::data) << error.what();
      }
    }
    write_text(path + "/" + name, good);
  }
  expect_holds(open_checkpoint(path), 1, 2);
}

TEST(Checkpoint, ExplicitPathsAndSizesOnly) {
  TempFolder folder;
  save(folder.path(), 1);
  expect_error(Exit::data, {folder / "step-00000002: no such folder"},
               [&] { open_checkpoint(folder / "step-00000002"); });
  expect_error(Exit::data, {"no manifest.json; it is not a checkpoint"},
               [&] { open_checkpoint(folder.path()); });
  edit(folder / "step-00000001/rank-000.safetensors", [](auto& text) { text.back() ^= 1; });
  EXPECT_NO_THROW(open_checkpoint(folder / "step-00000001", Check::sizes));
  std::filesystem::rename(folder / "step-00000001", folder / "step-00000003");
  expect_error(Exit::data, {"its name says step 3, its manifest.json step 1; name it after that"},
               [&] { open_checkpoint(folder / "step-00000003", Check::sizes); });
}

// Starting from nothing where something was saved would hide the loss.
TEST(Checkpoint, AllDamaged) {
  TempFolder folder;
  save(folder.path(), 1);
  save(folder.path(), 2);
  for (const char* name : {"step-00000001", "step-00000002"})
    fs::remove((folder / name) + "/manifest.json");
  std::vector<std::string> why;
  expect_error(Exit::data, {"none of its 2 checkpoints is complete; to start over, move them away"},
               [&] { latest(folder.path(), &why); });
  EXPECT_EQ(why.size(), 2u);
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

// Runs `body` in a process of its own; returns how it ended, as waitpid tells it.
pid_t start_child(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  return child;
}

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

TEST(Agree, AllSucceed) {
  run_local(3, {}, [](Communicator& c) {
    EXPECT_EQ(all_or_none(c, [&] { return fmt::format("a\n{}", c.rank()); }),
              (Names{"a\n0", "a\n1", "a\n2"}));
    EXPECT_EQ(on_rank_0(c, [&] { return fmt::format("from {}", c.rank()); }), "from 0");
  });
}

TEST(Agree, FirstFailureIsEveryones) {
  run_local(3, {}, [](Communicator& c) {
    const std::string second = c.topology().describe(1) + ": no luck";
    try {
      all_or_none(c, [&]() -> std::string {
        if (c.rank() == 1) fail(Exit::data, "no luck");
        if (c.rank() == 2) throw std::runtime_error("none either");
        return "";
      });
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), second);
      EXPECT_EQ(error.code(), Exit::data);
    }
    expect_error(Exit::internal, {"not an Error"}, [&] {
      on_rank_0(c, []() -> std::string { throw std::runtime_error("not an Error"); });
    });
    try {
      all_or_none(c, []() -> std::string { fail(Exit::config, "the same everywhere"); });
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "the same everywhere");
    }
  });
}

}  // namespace
}  // namespace lockstep
