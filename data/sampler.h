// Where a sample is read: a pure function of (seed, global sample index). It knows neither ranks
// nor steps, so their number cannot change the order of the data, and a resume needs no state but
// the index. Read next: loader.h, which turns indices into batches.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

// Tokens [start, start + length] of the stream: `length` inputs and, one further on, their targets.
struct TokenWindow {
  int64_t start = 0;
  int64_t length = 0;
};

class Sampler {
 public:
  virtual ~Sampler() = default;
  virtual TokenWindow window(int64_t sample) const = 0;  // sample >= 0; thread-safe
};

// The position of element i of [0, n) in a random order given by `key`: one-to-one, for every n,
// in O(log n) time and no memory. Swap-or-not shuffle (Hoang, Morris, Rogaway, "An enciphering
// scheme based on a card shuffle", CRYPTO 2012), 6 log2(n) rounds.
int64_t shuffled(int64_t i, int64_t n, uint64_t key);

// Endless training data. An epoch is every window of a row of adjoining windows of seq_len, in an
// order of its own, and each epoch starts the row at an offset of its own, so that epochs cut the
// text at different places. The row leaves out a part (one to two windows, less if the data
// has no two windows) that gives the offset room: a different part each time.
class TrainSampler : public Sampler {
 public:
  // Exit::data if `tokens` do not hold one window; `name` is for that message: data.train.
  TrainSampler(const std::string& name, int64_t tokens, int64_t seq_len, uint64_t seed);

  int64_t epoch_samples() const { return windows_; }
  TokenWindow window(int64_t sample) const override;

 private:
  int64_t seq_len_, windows_, slack_;
  uint64_t key_;
};

// Validation data in reading order. Every token but the first is a target exactly once: the last
// window may be shorter. Samples from samples() on are empty windows, which fill the last batch.
class ValidationSampler : public Sampler {
 public:
  // At most `limit` windows (batches times global batch: the same at any number of ranks); 0 means
  // all. Exit::data below two tokens.
  ValidationSampler(const std::string& name, int64_t tokens, int64_t seq_len, int64_t limit = 0);

  int64_t samples() const { return windows_; }
  TokenWindow window(int64_t sample) const override;

 private:
  int64_t seq_len_, inputs_, windows_;
};

}  // namespace lockstep
