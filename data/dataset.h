// A stream of tokens that can be read anywhere: shards concatenated in the byte order of their
// names, or synthetic tokens. It knows nothing of windows, batches or ranks.
// Read next: sampler.h, which decides where to read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/config.h"
#include "data/shard.h"

namespace lockstep {

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;  // tokens

  // Writes tokens [first, first + count) to `out`; windows may cross shards. Exit::data for an id
  // outside the vocabulary. Thread-safe.
  virtual void read(int64_t first, int64_t count, int32_t* out) const = 0;

  // Equal for equal data, so that a resume can refuse other data: format, number of shards and
  // tokens, and a hash over each shard's file name (without folder: a moved run resumes), size and
  // fingerprint. It reads at most 1 MiB per shard.
  virtual std::string identity() const = 0;

  // In which its files lie, each once; none of what has no files.
  virtual std::vector<std::string> folders() const { return {}; }
};

class ShardDataset : public Dataset {
 public:
  // `pattern`: a path or a glob. Exit::data if nothing matches or a shard is not as it must be.
  ShardDataset(const std::string& pattern, DataFormat format, int64_t vocab_size);

  int64_t size() const override { return starts_.back(); }
  void read(int64_t first, int64_t count, int32_t* out) const override;
  std::string identity() const override;
  std::vector<std::string> folders() const override;

  const std::vector<std::unique_ptr<Shard>>& shards() const { return shards_; }

 private:
  DataFormat format_;
  int64_t vocab_size_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::vector<int64_t> starts_ = {0};  // of each shard in the stream; then the size
};

// Uniformly random ids, a function of (seed, name, position): for benchmarks, where no file should
// be needed. Nothing can be learnt from it below a loss of log(vocab_size).
class SyntheticDataset : public Dataset {
 public:
  SyntheticDataset(uint64_t seed, const std::string& name, int64_t vocab_size);

  int64_t size() const override { return int64_t{1} << 24; }
  void read(int64_t first, int64_t count, int32_t* out) const override;
  std::string identity() const override;

 private:
  uint64_t seed_, key_;
  std::string name_;
  int64_t vocab_size_;
};

// Opens data.train or data.val as `config` says. Null if data.val names no files.
// Exit::config, Exit::data.
std::unique_ptr<Dataset> open_train_data(const DataConfig& config, int64_t vocab_size,
                                         uint64_t seed);
std::unique_ptr<Dataset> open_val_data(const DataConfig& config, int64_t vocab_size, uint64_t seed);

}  // namespace lockstep
