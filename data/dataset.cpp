// Shards and synthetic tokens as one stream. Read next: sampler.cpp.
#include "data/dataset.h"

#include <glob.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/philox.h"

namespace lockstep {

namespace {

std::vector<std::string> matching_files(const std::string& pattern) {
  // A file of exactly this name wins, so that a name with [ or * in it can be given.
  std::error_code ignored;
  if (std::filesystem::is_directory(pattern, ignored))
    fail(Exit::data, "[data] {} is a folder; name its shards, such as {}", pattern,
         (std::filesystem::path(pattern) / "train_*.bin").string());
  if (std::filesystem::exists(pattern, ignored)) return {pattern};
  std::vector<std::string> files;
  glob_t found{};
  if (glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0)
    files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  if (files.empty())
    fail(Exit::data,
         "[data] no file matches {}; check the path (`trainer data` makes shards from text)",
         pattern);
  std::sort(files.begin(), files.end());  // bytes, whatever the locale says
  return files;
}

}  // namespace

ShardDataset::ShardDataset(const std::string& pattern, DataFormat format, int64_t vocab_size)
    : format_(format), vocab_size_(vocab_size) {
  for (const std::string& path : matching_files(pattern)) {
    shards_.push_back(std::make_unique<Shard>(path, format));
    starts_.push_back(starts_.back() + shards_.back()->size());
  }
}

void ShardDataset::read(int64_t first, int64_t count, int32_t* out) const {
  check(first >= 0 && count >= 0 && first + count <= size(), "[data] tokens {} to {} of {}", first,
        first + count, size());
  size_t shard = std::upper_bound(starts_.begin(), starts_.end(), first) - starts_.begin() - 1;
  while (count > 0) {
    const int64_t here = std::min(count, starts_[shard + 1] - first);
    shards_[shard]->read(first - starts_[shard], here, vocab_size_, out);
    first += here, out += here, count -= here, ++shard;
  }
}

std::string ShardDataset::identity() const {
  uint64_t hash = 0;
  for (const auto& shard : shards_) {
    const std::string one =
        fmt::format("{} {} {} {:016x}\n", std::filesystem::path(shard->path()).filename().string(),
                    shard->size(), shard->width(), shard->fingerprint());
    hash = XXH3_64bits_withSeed(one.data(), one.size(), hash);
  }
  return fmt::format("{} shards={} tokens={} xxh3={:016x}",
                     format_ == DataFormat::llmc ? "llmc" : "nanogpt_u16", shards_.size(), size(),
                     hash);
}

std::vector<std::string> ShardDataset::folders() const {
  std::vector<std::string> folders;
  for (const auto& shard : shards_) {
    const std::filesystem::path parent = std::filesystem::path(shard->path()).parent_path();
    const std::string folder = parent.empty() ? "." : parent.string();
    if (std::ranges::find(folders, folder) == folders.end()) folders.push_back(folder);
  }
  return folders;
}

SyntheticDataset::SyntheticDataset(uint64_t seed, const std::string& name, int64_t vocab_size)
    : seed_(seed),
      key_(stream_key(seed, "data.synthetic." + name)),
      name_(name),
      vocab_size_(vocab_size) {}

void SyntheticDataset::read(int64_t first, int64_t count, int32_t* out) const {
  check(first >= 0 && count >= 0 && first + count <= size(), "[data] tokens {} to {} of {}", first,
        first + count, size());
  const Philox random(key_);
  for (int64_t at = first; at < first + count;) {
    const auto words = random(at / 4);  // four tokens
    for (int64_t lane = at % 4; lane < 4 && at < first + count; ++lane, ++at)
      *out++ = static_cast<int32_t>(static_cast<uint64_t>(words[lane]) * vocab_size_ >> 32);
  }
}

std::string SyntheticDataset::identity() const {
  return fmt::format("synthetic {} seed={} vocab={}", name_, seed_, vocab_size_);
}

namespace {

// `split`: "train" or "val". Null if no shards are named.
std::unique_ptr<Dataset> open_split(const DataConfig& config, const char* split,
                                    const std::string& shards, int64_t vocab_size, uint64_t seed) {
  validate(config);
  const DataFormat format = parse_data_format(config.format);
  if (format == DataFormat::synthetic)
    return std::make_unique<SyntheticDataset>(seed, split, vocab_size);
  if (shards.empty()) return nullptr;
  return std::make_unique<ShardDataset>(shards, format, vocab_size);
}

}  // namespace

std::unique_ptr<Dataset> open_train_data(const DataConfig& config, int64_t vocab_size,
                                         uint64_t seed) {
  return open_split(config, "train", config.train, vocab_size, seed);
}

std::unique_ptr<Dataset> open_val_data(const DataConfig& config, int64_t vocab_size,
                                       uint64_t seed) {
  return open_split(config, "val", config.val, vocab_size, seed);
}

}  // namespace lockstep
