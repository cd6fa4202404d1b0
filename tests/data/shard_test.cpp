// Shards: bytes of the layout, every refusal, files beyond 2 GiB, and writers that die.
#include "data/shard.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "tests/data/data_test_util.h"

namespace lockstep {
namespace {

std::vector<int32_t> read_all(const Shard& shard, int64_t vocab_size = int64_t{1} << 31) {
  std::vector<int32_t> tokens(shard.size());
  shard.read(0, shard.size(), vocab_size, tokens.data());
  return tokens;
}

std::string words(std::initializer_list<int32_t> values, size_t total_bytes) {
  std::string bytes(total_bytes, '\0');
  std::memcpy(bytes.data(), values.begin(), values.size() * sizeof(int32_t));
  return bytes;
}

TEST(Shard, GoldenBytesUint16) {
  TempFolder folder;
  write_shard(folder / "a.bin", {1, 258, 65535});
  const std::string bytes = read_text(folder / "a.bin");
  ASSERT_EQ(bytes.size(), 1024u + 6);
  // 20240520 = 0x0134D888, little-endian; version 1; 3 tokens.
  EXPECT_EQ(bytes.substr(0, 12), std::string("\x88\xD8\x34\x01\x01\0\0\0\x03\0\0\0", 12));
  EXPECT_EQ(bytes.substr(12, 1012), std::string(1012, '\0'));
  EXPECT_EQ(bytes.substr(1024), std::string("\x01\x00\x02\x01\xFF\xFF", 6));
}

TEST(Shard, GoldenBytesUint32) {
  TempFolder folder;
  write_shard(folder / "a.bin", {128255}, 4);
  const std::string bytes = read_text(folder / "a.bin");
  ASSERT_EQ(bytes.size(), 1024u + 4);
  // 20240801 = 0x0134D9A1; version 7; 128255 = 0x0001F4FF.
  EXPECT_EQ(bytes.substr(0, 12), std::string("\xA1\xD9\x34\x01\x07\0\0\0\x01\0\0\0", 12));
  EXPECT_EQ(bytes.substr(1024), std::string("\xFF\xF4\x01\x00", 4));
}

TEST(Shard, RoundTripOfBothWidthsAcrossTheWritersBuffer) {
  TempFolder folder;
  std::vector<int32_t> tokens(700'001);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 7919 % 65536);
  for (int width : {2, 4}) {
    write_shard(folder / "a.bin", tokens, width);
    const Shard shard(folder / "a.bin", DataFormat::llmc);
    EXPECT_EQ(shard.width(), width);
    EXPECT_EQ(read_all(shard), tokens);
  }
}

TEST(Shard, NanogptFilesByExplicitFormatOnly) {
  TempFolder folder;
  write_text(folder / "train.bin", std::string("\x05\x00\xFF\xC3", 4));
  const Shard shard(folder / "train.bin", DataFormat::nanogpt_u16);
  EXPECT_EQ(read_all(shard), (std::vector<int32_t>{5, 50175}));
  expect_error(Exit::data, {"train.bin", "4 bytes", "header", "data.format: nanogpt_u16"},
               [&] { Shard(folder / "train.bin", DataFormat::llmc); });

  write_text(folder / "odd.bin", "abc");
  expect_error(Exit::data, {"odd.bin", "3 bytes", "2-byte"},
               [&] { Shard(folder / "odd.bin", DataFormat::nanogpt_u16); });
  write_text(folder / "empty.bin", "");
  expect_error(Exit::data, {"empty.bin", "0 bytes"},
               [&] { Shard(folder / "empty.bin", DataFormat::nanogpt_u16); });
  write_shard(folder / "llmc.bin", {1, 2, 3});
  expect_error(Exit::data, {"llmc.bin", "llm.c's header", "data.format: llmc"},
               [&] { Shard(folder / "llmc.bin", DataFormat::nanogpt_u16); });
}

TEST(Shard, ForeignTruncatedAndMissingFiles) {
  TempFolder folder;
  write_text(folder / "model.bin", words({20240326, 3}, 4096));
  expect_error(Exit::data,
               {"model.bin", "magic 20240326 version 3", "20240520 version 1", "20240801 version 7",
                "data.format: nanogpt_u16"},
               [&] { Shard(folder / "model.bin", DataFormat::llmc); });
  // The width of one magic with the version of the other is foreign, too.
  write_text(folder / "mixed.bin", words({20240520, 7, 0}, 1024));
  expect_error(Exit::data, {"mixed.bin", "magic 20240520 version 7"},
               [&] { Shard(folder / "mixed.bin", DataFormat::llmc); });

  write_shard(folder / "cut.bin", std::vector<int32_t>(100, 1));
  std::filesystem::resize_file(folder / "cut.bin", 1024 + 150);
  expect_error(Exit::data, {"cut.bin", "1174 bytes", "100 tokens of 2 bytes", "1224 bytes"},
               [&] { Shard(folder / "cut.bin", DataFormat::llmc); });
  std::filesystem::resize_file(folder / "cut.bin", 1024 + 202);
  expect_error(Exit::data, {"1226 bytes", "1224 bytes"},
               [&] { Shard(folder / "cut.bin", DataFormat::llmc); });

  expect_error(Exit::data, {"absent.bin", "No such file"},
               [&] { Shard(folder / "absent.bin", DataFormat::llmc); });
  expect_error(Exit::data, {"not a regular file"}, [&] { Shard(folder / ".", DataFormat::llmc); });
}

TEST(Shard, IdBeyondTheVocabulary) {
  TempFolder folder;
  write_shard(folder / "a.bin", {1, 2, 3, 999, 4});
  const Shard shard(folder / "a.bin", DataFormat::llmc);
  int32_t out[5];
  shard.read(0, 3, 999, out);
  shard.read(0, 5, 1000, out);
  expect_error(Exit::data, {"a.bin", "token 3", "id 999", "vocabulary of 999", "model.vocab_size"},
               [&] { shard.read(2, 3, 999, out); });
  // An id that int32 would show as negative.
  std::string bytes = words({20240801, 7, 1}, 1028);
  bytes.replace(1024, 4, "\xFF\xFF\xFF\xFF");
  write_text(folder / "b.bin", bytes);
  expect_error(Exit::data, {"b.bin", "id 4294967295"},
               [&] { Shard(folder / "b.bin", DataFormat::llmc).read(0, 1, 1000, out); });
}

TEST(Shard, FileCutUnderARunningReader) {
  TempFolder folder;
  write_shard(folder / "a.bin", std::vector<int32_t>(100'000, 1));
  const Shard shard(folder / "a.bin", DataFormat::llmc);
  std::filesystem::resize_file(folder / "a.bin", 2048);
  int32_t out[4];
  expect_error(Exit::data, {"a.bin", "201024 bytes", "2048 now"},
               [&] { shard.read(90'000, 4, 100, out); });
  std::filesystem::remove(folder / "a.bin");
  expect_error(Exit::data, {"a.bin", "gone", "No such file"}, [&] { shard.read(0, 4, 100, out); });
}

// More tokens than a signed 32-bit count and more bytes than 4 GiB; sparse, so it costs nothing.
TEST(Shard, BeyondTwoGigabytesAndTokens) {
  TempFolder folder;
  const std::string path = folder / "big.bin";
  const int64_t tokens = (int64_t{1} << 31) + 10, bytes = 1024 + 2 * tokens;
  write_text(path, words({20240520, 1, static_cast<int32_t>(static_cast<uint32_t>(tokens))}, 1024));
  std::filesystem::resize_file(path, bytes);
  {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(bytes - 6);
    file.write("\x0A\x00\x0B\x00\x0C\x00", 6);
  }
  const Shard shard(path, DataFormat::llmc);
  EXPECT_EQ(shard.size(), tokens);
  std::vector<int32_t> out(4);
  shard.read(tokens - 4, 4, 256, out.data());
  EXPECT_EQ(out, (std::vector<int32_t>{0, 10, 11, 12}));
  expect_error(Exit::data, {fmt::format("token {}", tokens - 1), "id 12"},
               [&] { shard.read(tokens - 4, 4, 12, out.data()); });
}

TEST(Shard, FingerprintSeesContentAndEnds) {
  TempFolder folder;
  std::vector<int32_t> tokens(3'000'000, 7);
  const auto fingerprint = [&] {
    write_shard(folder / "a.bin", tokens);
    return Shard(folder / "a.bin", DataFormat::llmc).fingerprint();
  };
  const uint64_t before = fingerprint();
  EXPECT_EQ(fingerprint(), before);
  tokens.back() = 8;
  const uint64_t end_changed = fingerprint();
  EXPECT_NE(end_changed, before);
  tokens.push_back(8);
  EXPECT_NE(fingerprint(), end_changed);
}

TEST(ShardWriter, RefusesWhatTheWidthDoesNotHold) {
  TempFolder folder;
  expect_error(Exit::data, {"a.bin", "token 1", "id 65536", "2 bytes"}, [&] {
    ShardWriter writer(folder / "a.bin", 2);
    writer.append(std::vector<int32_t>{65535, 65536});
  });
  expect_error(Exit::data, {"id -1", "4 bytes"}, [&] {
    ShardWriter writer(folder / "a.bin", 4);
    writer.append(std::vector<int32_t>{-1});
  });
  expect_error(Exit::config,
               {"[file] cannot create ", "absent/a.bin.partial: No such file", "rights"},
               [&] { ShardWriter(folder / "absent/a.bin", 2); });
  EXPECT_EQ(folder.files(), 0);
}

TEST(ShardWriter, WithoutFinishLeavesNothingAndKeepsTheOldFile) {
  TempFolder folder;
  write_shard(folder / "a.bin", {1, 2, 3});
  {
    ShardWriter writer(folder / "a.bin", 2);
    writer.append(std::vector<int32_t>(2'000'000, 9));
  }
  EXPECT_EQ(folder.files(), 1);
  EXPECT_EQ(read_all(Shard(folder / "a.bin", DataFormat::llmc)), (std::vector<int32_t>{1, 2, 3}));
}

TEST(ShardWriter, KilledWhileWritingLeavesNoShard) {
  TempFolder folder;
  const std::string path = folder / "a.bin";
  const pid_t child = fork();
  if (child == 0) {
    ShardWriter writer(path, 2);
    writer.append(std::vector<int32_t>(2'000'000, 9));
    raise(SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(std::filesystem::exists(path + ".partial"));
  write_shard(path, {4, 5});  // the next attempt takes over
  EXPECT_EQ(read_all(Shard(path, DataFormat::llmc)), (std::vector<int32_t>{4, 5}));
  EXPECT_EQ(folder.files(), 1);
}

TEST(ShardWriter, DiskFull) {
  TempFolder folder;
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 100'000;
  setrlimit(RLIMIT_FSIZE, &small);
  expect_error(Exit::restart,
               {"[file] cannot write ", "a.bin.partial: File too large after ",
                "no shard was made; make room and run the same command again"},
               [&] {
                 ShardWriter writer(folder / "a.bin", 2);
                 writer.append(std::vector<int32_t>(2'000'000, 9));
                 writer.finish();
               });
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(folder.files(), 0);
}

}  // namespace
}  // namespace lockstep
