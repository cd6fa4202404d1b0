// Each file in configs/ reads, is valid for the ranks it is meant for, says nothing that is a
// default anyway, and survives printing.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "examples/config_io.h"
#include "examples/validate.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

// Names every value of `file` that equals the default at its place.
void collect_idle(const Json& file, const Json& defaults, const std::string& path,
                  std::vector<std::string>& idle) {
  for (const auto& [key, value] : file.items()) {
    if (value.is_object())
      collect_idle(value, defaults.at(key), path + key + ".", idle);
    else if (value == defaults.at(key))
      idle.push_back(path + key);
  }
}

TEST(Configs, EachIsValidAndHoldsOnlyWhatDiffers) {
  const std::map<std::string, int> ranks = {
      {"quickstart", 2}, {"ddp-2", 2}, {"gpt2-124m", 2}, {"llama-tiny", 2}, {"bench-small", 1}};
  const Json defaults = Json::parse(print_config(Config{}));
  size_t found = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(LOCKSTEP_SOURCE_DIR) + "/configs")) {
    const std::string name = entry.path().stem();
    SCOPED_TRACE(name);
    ASSERT_TRUE(ranks.count(name)) << "say here for how many ranks it is";
    ++found;
    const Config config = read_config(entry.path());
    EXPECT_NO_THROW(validate(config, ranks.at(name)));

    std::vector<std::string> idle;
    collect_idle(Json::parse(std::ifstream(entry.path())), defaults, "", idle);
    EXPECT_EQ(idle, std::vector<std::string>{}) << "these are defaults";

    const std::string copy = testing::TempDir() + fmt::format("configs_{}.json", getpid());
    std::ofstream(copy) << print_config(config);
    EXPECT_EQ(print_config(read_config(copy)), print_config(config));
    std::filesystem::remove(copy);
  }
  EXPECT_EQ(found, ranks.size());
}

// Published figures are of this model: it must not follow a changed default.
TEST(Configs, BenchSmallIsWhatItsFiguresSay) {
  const Config c = read_config(std::string(LOCKSTEP_SOURCE_DIR) + "/configs/bench-small.json");
  EXPECT_EQ(c.model.n_layer, 6);
  EXPECT_EQ(c.model.n_head, 6);
  EXPECT_EQ(c.model.d_model, 384);
  EXPECT_EQ(c.model.vocab_size, 8192);
  EXPECT_EQ(c.train.seq_len, 256);
  EXPECT_EQ(c.train.micro_batch, 8);
  EXPECT_EQ(c.data.format, "synthetic");
}

}  // namespace
}  // namespace lockstep
