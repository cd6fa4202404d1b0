// Shards as one stream, its identity, synthetic tokens, and the rules of the data section.
#include "data/dataset.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "tests/data/data_test_util.h"

namespace lockstep {
namespace {

std::vector<int32_t> read(const Dataset& data, int64_t first, int64_t count) {
  std::vector<int32_t> out(count);
  data.read(first, count, out.data());
  return out;
}

TEST(ShardDataset, ConcatenatesInByteOrderAndReadsAcrossShards) {
  TempFolder folder;
  write_shard(folder / "t_b.bin", {3, 4, 5}, 4);
  write_shard(folder / "t_a.bin", {0, 1, 2});
  write_shard(folder / "t_B.bin", {});
  write_shard(folder / "t_c.bin", {6, 7});
  write_shard(folder / "other.bin", {99});
  const ShardDataset data(folder / "t_*.bin", DataFormat::llmc, 100);
  EXPECT_EQ(data.size(), 8);
  for (int64_t first = 0; first <= 8; ++first)
    for (int64_t count = 0; first + count <= 8; ++count) {
      const auto tokens = read(data, first, count);
      for (int64_t i = 0; i < count; ++i) EXPECT_EQ(tokens[i], first + i);
    }
}

TEST(ShardDataset, NamesWithGlobCharactersAndMissingOnes) {
  TempFolder folder;
  write_shard(folder / "a[1].bin", {1, 2});
  EXPECT_EQ(ShardDataset(folder / "a[1].bin", DataFormat::llmc, 10).size(), 2);
  expect_error(Exit::data, {"is a folder", "train_*.bin"},
               [&] { ShardDataset(folder / "", DataFormat::llmc, 10); });
  expect_error(Exit::data, {"no file matches", "val_*.bin"},
               [&] { ShardDataset(folder / "val_*.bin", DataFormat::llmc, 10); });
}

TEST(ShardDataset, AnErrorNamesTheShardAndItsOwnPosition) {
  TempFolder folder;
  write_shard(folder / "t_0.bin", {1, 2, 3});
  write_shard(folder / "t_1.bin", {4, 50});
  const ShardDataset data(folder / "t_*.bin", DataFormat::llmc, 10);
  expect_error(Exit::data, {"t_1.bin", "token 1 ", "id 50"}, [&] { read(data, 0, 5); });
}

TEST(ShardDataset, IdentityFollowsContentNamesAndOrderButNotTheFolder) {
  TempFolder one, two;
  for (const TempFolder* folder : {&one, &two}) {
    write_shard(*folder / "t_0.bin", {1, 2, 3});
    write_shard(*folder / "t_1.bin", {4, 5});
  }
  const auto identity = [](const TempFolder& folder) {
    return ShardDataset(folder / "t_*.bin", DataFormat::llmc, 10).identity();
  };
  const std::string original = identity(one);
  EXPECT_NE(original.find("llmc shards=2 tokens=5 xxh3="), std::string::npos) << original;
  EXPECT_EQ(identity(two), original);
  write_shard(two / "t_1.bin", {4, 6});
  EXPECT_NE(identity(two), original);
  write_shard(two / "t_1.bin", {1, 2, 3});
  write_shard(two / "t_0.bin", {4, 5});
  EXPECT_NE(identity(two), original);
}

TEST(SyntheticDataset, IsAFunctionOfSeedNameAndPosition) {
  const SyntheticDataset data(1, "train", 50257);
  const auto all = read(data, 0, 1000);
  for (int64_t first : {1, 2, 3, 5, 8}) {
    const auto part = read(data, first, 100);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + first));
  }
  EXPECT_EQ(read(SyntheticDataset(1, "train", 50257), 0, 1000), all);
  EXPECT_NE(read(SyntheticDataset(2, "train", 50257), 0, 1000), all);
  EXPECT_NE(read(SyntheticDataset(1, "val", 50257), 0, 1000), all);
  EXPECT_NE(SyntheticDataset(2, "train", 50257).identity(), data.identity());
}

TEST(SyntheticDataset, IsUniformOverTheVocabulary) {
  const int64_t vocab = 100, count = 100'000;
  std::vector<int> histogram(vocab);
  for (int32_t id : read(SyntheticDataset(3, "train", vocab), 0, count)) ++histogram.at(id);
  double chi2 = 0;
  for (int n : histogram) chi2 += (n - 1000.0) * (n - 1000.0) / 1000.0;
  EXPECT_LT(chi2, 99 + 5 * std::sqrt(2 * 99.0));  // mean + 5 standard deviations of chi2(99)
}

TEST(DataConfig, OpensWhatItNames) {
  TempFolder folder;
  write_shard(folder / "train_0.bin", {1, 2, 3});
  DataConfig config;
  config.train = folder / "train_*.bin";
  EXPECT_EQ(open_train_data(config, 256, 1)->size(), 3);
  EXPECT_EQ(open_val_data(config, 256, 1), nullptr);
  config = {};
  config.format = "synthetic";
  EXPECT_NE(open_train_data(config, 256, 1)->identity(), open_val_data(config, 256, 1)->identity());
}

TEST(DataConfig, RefusesWhatCannotBeHonoured) {
  const auto with = [](auto change) {
    DataConfig config;
    config.train = "train.bin";
    change(config);
    return [config] { validate(config); };
  };
  with([](auto&) {})();
  expect_error(Exit::config, {"data.format", "\"parquet\"", "llmc, nanogpt_u16 or synthetic"},
               with([](auto& c) { c.format = "parquet"; }));
  expect_error(Exit::config, {"data.train", "empty", "trainer data"},
               with([](auto& c) { c.train = ""; }));
  expect_error(Exit::config, {"synthetic reads no files", "data.train is \"train.bin\""},
               with([](auto& c) { c.format = "synthetic"; }));
  expect_error(Exit::config, {"data.val is \"v.bin\""},
               with([](auto& c) { c.format = "synthetic", c.train = "", c.val = "v.bin"; }));
  expect_error(Exit::config, {"data.tokenizer", "bytes"}, with([](auto& c) { c.tokenizer = ""; }));
  for (int workers : {-1, 65})
    expect_error(Exit::config, {"data.workers", std::to_string(workers), "0 to 64"},
                 with([&](auto& c) { c.workers = workers; }));
}

TEST(DataConfig, VisitNamesEveryFieldOnce) {
  std::set<std::string> names;
  auto visitor = [&](const char* name, auto&, const std::string& help, const auto&...) {
    EXPECT_TRUE(names.insert(name).second);
    EXPECT_FALSE(help.empty());
  };
  DataConfig config;
  config.visit(visitor);
  EXPECT_EQ(names, (std::set<std::string>{"train", "val", "format", "tokenizer", "workers"}));
}

}  // namespace
}  // namespace lockstep
