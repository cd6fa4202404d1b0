// Each file in configs/ reads, is valid for the ranks it is meant for, says nothing that is a
// default anyway, and survives printing.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "dist/memory.h"
#include "examples/config_io.h"
#include "examples/validate.h"
#include "nn/gpt.h"
#include "optim/optimizer.h"

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
      {"quickstart", 2},  {"ddp-2", 2},          {"gpt2-124m", 2}, {"llama-tiny", 2},
      {"bench-small", 1}, {"gpt2-124m-cuda", 8}, {"gpt7b", 8},     {"gpt2-1558m-cuda", 8}};
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

// Parameters of a model as Gpt makes them, without their memory: those of a tiny model of as many
// layers, whose sizes tell which of the large one's they stand for.
class Addresses : public MemorySource {
 public:
  void* allocate(size_t bytes) override {
    void* p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    check(p != MAP_FAILED, "no addresses for {} bytes", bytes);
    return p;
  }
  void release(void* p, size_t bytes) override { munmap(p, bytes); }
};

MemoryModel without_memory(const ModelConfig& config, DType type, Allocator& addresses) {
  const auto packed = [](const ModelConfig& c) {
    return (c.n_head + 2 * c.kv_heads()) * c.head_dim();
  };
  ModelConfig tiny = config;
  tiny.d_model = 4 * config.n_head, tiny.d_ff = 7, tiny.vocab_size = 5, tiny.max_seq_len = 3;
  const std::map<int64_t, int64_t> sizes{
      {tiny.d_model, config.d_model}, {packed(tiny), packed(config)}, {7, config.ff()},
      {14, 2 * config.ff()},          {5, config.vocab_size},         {3, config.max_seq_len}};
  Gpt gpt(tiny, type, 0);
  const AllocatorScope scope(addresses);  // from here on nothing may be read or written
  MemoryModel model;
  size_t unit = 0;
  for (const Module* child : gpt.children()) {
    for (const NamedTensor& p : child->parameters()) {
      Shape shape;
      for (int64_t size : p.tensor.shape()) shape.push_back(sizes.at(size));
      model.parameters.push_back({p.name, Tensor::empty(shape, type)});
      model.unit_of.push_back(unit);
    }
    ++unit;
  }
  for (const Module* child : gpt.children())
    for (const NamedTensor& borrowed : child->borrowed())
      for (size_t i = 0; i < model.parameters.size(); ++i)
        if (model.parameters[i].name == borrowed.name) model.early.push_back(i);
  return model;
}

// Estimated: what a block keeps for backward (its input alone if it is computed again), twice a
// block for what backward has under way, and the logits with their gradient.
double activation_bytes(const Config& config) {
  const ModelConfig& m = config.model;
  const double c = static_cast<double>(m.d_model), f = static_cast<double>(m.ff());
  const double per_block = m.arch == "llama" ? 11 * c + 3 * f : 8 * c + 2 * f;
  const double kept = config.train.recompute == "block" ? c : per_block;
  const double tokens = static_cast<double>(config.train.micro_batch * config.train.seq_len);
  return tokens * (2 * (static_cast<double>(m.n_layer) * kept + 2 * per_block) +
                   6 * static_cast<double>(m.vocab_size));
}

// On 8 GPUs of 80 GB, with a tenth to spare for fragments, libraries and workspaces.
TEST(Configs, FitEightGpusOf80Gb) {
  for (const auto& [name, parameters] :
       {std::pair{"gpt2-124m-cuda", 124.5e6}, {"gpt2-1558m-cuda", 1557.7e6}, {"gpt7b", 6738.4e6}}) {
    const Config config = read_config(fmt::format("{}/configs/{}.json", LOCKSTEP_SOURCE_DIR, name));
    Addresses addresses;
    Allocator allocator(addresses);
    const MemoryModel model = without_memory(config.model, config.train.dtype(), allocator);
    double count = 0;
    for (const NamedTensor& p : model.parameters) count += static_cast<double>(p.tensor.numel());
    EXPECT_NEAR(count, parameters, 0.001 * parameters) << name;
    Topology one_host;
    one_host.size = one_host.local_size = 8;
    one_host.host_of.assign(8, 0);
    const MemoryBytes plan =
        memory_plan(config.dist, model, one_host, SumOrder::same_world, accumulation(config, 8),
                    state_bytes_per_element(config.optim, config.train.dtype()));
    const double total = plan.total() + activation_bytes(config);
    EXPECT_LT(total, 0.9 * 80e9) << name;
    EXPECT_GT(total, 0.3 * 80e9) << name << " leaves most of the memory unused";
    std::printf("%s: %.1f GB of states and buffers, %.1f GB of activations (estimated)\n", name,
                1e-9 * plan.total(), 1e-9 * activation_bytes(config));
  }
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
