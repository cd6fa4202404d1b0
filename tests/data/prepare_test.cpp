// Text to shards: nothing is lost, the folder is whole or absent, and every refusal.
#include "data/prepare.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <set>

#include "data/dataset.h"
#include "data/tokenizer.h"
#include "tests/data/data_test_util.h"

namespace lockstep {
namespace {

std::string numbered_lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "line number " + std::to_string(i) + " of the text\n";
  return text;
}

std::string decoded(const std::string& pattern, const Tokenizer& tokenizer) {
  const ShardDataset data(pattern, DataFormat::llmc, tokenizer.vocab_size());
  std::vector<int32_t> tokens(data.size());
  data.read(0, data.size(), tokens.data());
  return tokenizer.decode(tokens);
}

TEST(Prepare, BytesSplitAtALineIntoShards) {
  TempFolder folder;
  const std::string text = numbered_lines(6000);
  write_text(folder / "text.txt", text);
  const PrepareResult result = prepare({.text = folder / "text.txt",
                                        .out = folder / "a/shards/",
                                        .val_fraction = 0.25,
                                        .shard_tokens = 50'000});
  const int64_t size = text.size();
  EXPECT_EQ(result.text_bytes, size);
  EXPECT_EQ(result.train_tokens + result.val_tokens, size);
  EXPECT_NEAR(result.val_tokens, size / 4.0, 40);  // a line has fewer bytes
  EXPECT_EQ(result.train_shards, (result.train_tokens + 49'999) / 50'000);
  EXPECT_EQ(result.val_shards, (result.val_tokens + 49'999) / 50'000);
  EXPECT_EQ(result.vocab_size, 256);
  EXPECT_EQ(result.token_bytes, 2);
  EXPECT_EQ(result.train, folder / "a/shards/train_*.bin");
  EXPECT_EQ(result.tokenizer, "bytes");
  EXPECT_TRUE(std::filesystem::exists(folder / "a/shards/train_000000.bin"));
  EXPECT_FALSE(std::filesystem::exists(folder / "a/shards.partial"));

  const auto bytes = open_tokenizer("bytes");
  const std::string train = decoded(result.train, *bytes), val = decoded(result.val, *bytes);
  EXPECT_EQ(train + val, text);
  EXPECT_EQ(train.back(), '\n');
}

TEST(Prepare, TrainsASentencePieceModelFirst) {
  TempFolder folder;
  const std::string text = numbered_lines(45'000);  // several parts, encoded by several threads
  write_text(folder / "text.txt", text);
  const PrepareResult result = prepare({.text = folder / "text.txt",
                                        .out = folder / "out",
                                        .tokenizer = "train",
                                        .vocab_size = 300});
  EXPECT_EQ(result.tokenizer, folder / "out/tokenizer.model");
  EXPECT_EQ(result.vocab_size, 300);
  EXPECT_LT(result.train_tokens, result.text_bytes / 2);
  const auto tokenizer = open_tokenizer(result.tokenizer);
  EXPECT_EQ(decoded(result.train, *tokenizer) + decoded(result.val, *tokenizer), text);

  const PrepareResult applied = prepare(
      {.text = folder / "text.txt", .out = folder / "again", .tokenizer = result.tokenizer});
  EXPECT_EQ(read_text(folder / "again/train_000000.bin"),
            read_text(folder / "out/train_000000.bin"));
  EXPECT_EQ(applied.tokenizer, result.tokenizer);
}

TEST(Prepare, NoValidationDataAndTextWithoutLines) {
  TempFolder folder;
  write_text(folder / "text.txt", "no line ends here");
  const PrepareResult none =
      prepare({.text = folder / "text.txt", .out = folder / "a", .val_fraction = 0});
  EXPECT_EQ(none.val, "");
  EXPECT_EQ(none.val_shards, 0);
  EXPECT_EQ(none.train_tokens, 17);
  const PrepareResult some =
      prepare({.text = folder / "text.txt", .out = folder / "b", .val_fraction = 0.2});
  EXPECT_EQ(some.val_tokens, 3);
}

TEST(Prepare, RefusalsLeaveNoFolder) {
  TempFolder folder;
  write_text(folder / "text.txt", numbered_lines(10));
  write_text(folder / "empty.txt", "");
  write_text(folder / "latin1.txt", "caf\xE9 au lait\n");
  const PrepareOptions good = {.text = folder / "text.txt", .out = folder / "out"};
  const auto refuse = [&](Exit code, const std::vector<std::string>& parts, auto change) {
    PrepareOptions options = good;
    change(options);
    expect_error(code, parts, [&] { prepare(options); });
    EXPECT_EQ(folder.files(), 3);
  };
  refuse(Exit::data, {"empty.txt", "is empty"}, [&](auto& o) { o.text = folder / "empty.txt"; });
  refuse(Exit::data, {"absent.txt", "No such file"},
         [&](auto& o) { o.text = folder / "absent.txt"; });
  refuse(Exit::data, {"absent.model"}, [&](auto& o) { o.tokenizer = folder / "absent.model"; });
  refuse(Exit::data, {"latin1.txt", "not UTF-8 at byte 3", "iconv"}, [&](auto& o) {
    o.text = folder / "latin1.txt", o.tokenizer = "train", o.vocab_size = 300;
  });
  refuse(Exit::data, {"vocabulary of 9000"},
         [](auto& o) { o.tokenizer = "train", o.vocab_size = 9000; });
  refuse(Exit::usage, {"text is \"\"", "name a text file"}, [](auto& o) { o.text = ""; });
  refuse(Exit::usage, {"val_fraction is 1", "below 1"}, [](auto& o) { o.val_fraction = 1; });
  refuse(Exit::usage, {"val_fraction is -0.1"}, [](auto& o) { o.val_fraction = -0.1; });
  refuse(Exit::usage, {"shard_tokens is 0", "1 to 2147483647"},
         [](auto& o) { o.shard_tokens = 0; });
  refuse(Exit::usage, {"needs vocab_size"}, [](auto& o) { o.tokenizer = "train"; });
  refuse(Exit::usage,
         {"vocab_size 8192", "tokenizer train only", "\"bytes\"", "or remove vocab_size"},
         [](auto& o) { o.vocab_size = 8192; });
  refuse(Exit::usage, {"none cannot read text"}, [](auto& o) { o.tokenizer = "none"; });

  prepare(good);
  expect_error(Exit::data, {"out", "exists and is not an empty folder (its files"},
               [&] { prepare(good); });
  PrepareOptions other = good;
  other.shard_tokens = 500;
  expect_error(Exit::data, {"made with shard_tokens = ", ", asked for shard_tokens = 500); remove"},
               [&] { prepare(other); });
}

TEST(Prepare, KnowsWhetherItIsAlreadyDone) {
  namespace fs = std::filesystem;
  TempFolder folder;
  write_text(folder / "text.txt", numbered_lines(1000));
  const PrepareOptions options = {.text = folder / "text.txt", .out = folder / "out"};
  EXPECT_FALSE(is_prepared(options));
  prepare(options);
  EXPECT_TRUE(is_prepared(options));
  PrepareOptions others = options;
  others.val_fraction = 0.2;
  EXPECT_FALSE(is_prepared(others));
  others = options;
  others.out = folder / "elsewhere";
  EXPECT_FALSE(is_prepared(others));
  // What counts is what is in the files, not when they were written.
  const auto before = fs::last_write_time(options.text);
  write_text(options.text, numbered_lines(1001));
  fs::last_write_time(options.text, before);
  EXPECT_FALSE(is_prepared(options));
  write_text(options.text, numbered_lines(1000));
  EXPECT_TRUE(is_prepared(options));
  fs::rename(folder / "out/train_000000.bin", folder / "out/elsewhere.bin");
  EXPECT_FALSE(is_prepared(options));
  expect_error(Exit::data, {"(its files are not those that were made)"}, [&] { prepare(options); });
  fs::remove(options.text);
  EXPECT_FALSE(is_prepared(options));
}

TEST(Prepare, ShardsTellWhichTokenizerMadeThem) {
  TempFolder folder;
  write_text(folder / "text.txt", numbered_lines(3000));
  const PrepareOptions plain = {.text = folder / "text.txt", .out = folder / "bytes"};
  PrepareOptions trained = plain;
  trained.out = folder / "pieces", trained.tokenizer = "train", trained.vocab_size = 300;
  const PrepareResult of_bytes = prepare(plain), of_pieces = prepare(trained);
  const auto unknown = [](const Tokenizer& tokenizer, const PrepareResult& result) {
    return check_made_by(tokenizer, ShardDataset(result.train, DataFormat::llmc, 300));
  };
  const std::vector<std::string> none;
  const auto bytes = open_tokenizer("bytes"), pieces = open_tokenizer(of_pieces.tokenizer);
  EXPECT_EQ(unknown(*bytes, of_bytes), none);
  EXPECT_EQ(unknown(*pieces, of_pieces), none);
  expect_error(Exit::config,
               {"[data.tokenizer] is bytes, but " + pieces->identity() + " made the shards in " +
                (folder / "pieces") + " (made_from.txt there); use --set data.tokenizer=" +
                of_pieces.tokenizer + ", or shards that this tokenizer made"},
               [&] { unknown(*bytes, of_pieces); });
  expect_error(Exit::config,
               {"[data.tokenizer] is " + pieces->identity() + ", but bytes made the shards in ",
                "use --set data.tokenizer=bytes, or"},
               [&] { unknown(*pieces, of_bytes); });
  // What counts is the model's content.
  PrepareOptions applied = plain;
  applied.out = folder / "applied", applied.tokenizer = folder / "copy.model";
  std::filesystem::copy_file(of_pieces.tokenizer, applied.tokenizer);
  const PrepareResult of_copy = prepare(applied);
  EXPECT_EQ(unknown(*pieces, of_copy), none);
  expect_error(Exit::config, {"use --set data.tokenizer=" + applied.tokenizer},
               [&] { unknown(*bytes, of_copy); });

  // Records of before there was that line stay valid, and tell nothing; nor do llm.c's folders.
  const std::string record_file = folder / "bytes/made_from.txt", record = read_text(record_file);
  write_text(record_file, record.substr(0, record.rfind("token ids = ")));
  EXPECT_TRUE(is_prepared(plain));
  EXPECT_EQ(unknown(*bytes, of_bytes), std::vector<std::string>{folder / "bytes"});
  std::filesystem::remove(record_file);
  EXPECT_EQ(unknown(*bytes, of_bytes), std::vector<std::string>{folder / "bytes"});
  EXPECT_EQ(check_made_by(*bytes, SyntheticDataset(0, "train", 300)), none);
}

TEST(Prepare, RefusesATextWithNothingToTrainOn) {
  TempFolder folder;
  write_text(folder / "one", "x");
  expect_error(Exit::data, {"one of 1 bytes and val_fraction 0.5 leave nothing to train on"}, [&] {
    prepare({.text = folder / "one", .out = folder / "out", .val_fraction = 0.5});
  });
}

// Kills a child at growing delays: whatever is there under the final name is the whole of it.
TEST(Prepare, KilledAnywhereLeavesAWholeFolderOrNone) {
  TempFolder folder;
  write_text(folder / "text.txt", numbered_lines(40'000));
  const PrepareOptions options = {
      .text = folder / "text.txt", .out = folder / "out", .shard_tokens = 100'000};
  for (int delay_us : {0, 1000, 4000, 16'000, 64'000}) {
    const pid_t child = fork();
    if (child == 0) {
      prepare(options);
      _exit(0);
    }
    usleep(delay_us);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    if (!std::filesystem::exists(folder / "out")) continue;
    const auto bytes = open_tokenizer("bytes");
    EXPECT_EQ(
        decoded(folder / "out/train_*.bin", *bytes) + decoded(folder / "out/val_*.bin", *bytes),
        numbered_lines(40'000));
    std::filesystem::remove_all(folder / "out");
  }
  prepare(options);  // takes over whatever the last one left
  EXPECT_FALSE(std::filesystem::exists(folder / "out.partial"));
}

TEST(PrepareOptions, VisitNamesEveryFieldOnce) {
  std::set<std::string> names;
  auto visitor = [&](const char* name, auto&, const std::string&) { names.insert(name); };
  PrepareOptions options;
  options.visit(visitor);
  EXPECT_EQ(names, (std::set<std::string>{"text", "out", "tokenizer", "vocab_size", "val_fraction",
                                          "shard_tokens"}));
}

}  // namespace
}  // namespace lockstep
