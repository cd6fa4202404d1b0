// Checkpoints that something happened to: passed over with the reason, or refused. Read next:
// checkpoint_kill_test.cpp.
#include <xxhash.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/examples/checkpoint_data.h"

namespace lockstep {
namespace {

using namespace test;
namespace fs = std::filesystem;

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

}  // namespace
}  // namespace lockstep
