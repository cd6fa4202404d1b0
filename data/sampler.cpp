// The order of samples. Read next: loader.cpp.
#include "data/sampler.h"

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "core/philox.h"

namespace lockstep {

namespace {

uint64_t join(uint32_t low, uint32_t high) {
  return low | static_cast<uint64_t>(high) << 32;
}

// 64 random bits as an integer in [0, n).
int64_t below(int64_t n, uint64_t bits) {
  return static_cast<int64_t>(static_cast<unsigned __int128>(bits) * n >> 64);
}

}  // namespace

int64_t shuffled(int64_t i, int64_t n, uint64_t key) {
  check(i >= 0 && i < n, "[sampler] element {} of {}", i, n);
  const Philox random(key);
  const uint64_t rounds = 6 * std::bit_width(static_cast<uint64_t>(n));
  for (uint64_t round = 1; round <= rounds; ++round) {
    // Each round pairs i with pivot - i (mod n); a coin that both would toss alike, because it is
    // keyed by the larger of the two, decides whether they swap.
    const auto pivot = random(round);
    int64_t partner = below(n, join(pivot[0], pivot[1])) - i;
    if (partner < 0) partner += n;
    if (random(std::max(i, partner), round)[0] & 1) i = partner;
  }
  return i;
}

TrainSampler::TrainSampler(const std::string& name, int64_t tokens, int64_t seq_len, uint64_t seed)
    : seq_len_(seq_len), key_(stream_key(seed, "data.order")) {
  check(seq_len > 0, "[sampler] seq_len {}", seq_len);
  if (tokens < seq_len + 1)
    fail(Exit::data,
         "[{}] has {} tokens, one window of train.seq_len {} needs {}; use more text or "
         "train.seq_len of at most {}",
         name, tokens, seq_len, seq_len + 1, std::max<int64_t>(tokens - 1, 0));
  const int64_t inputs = tokens - 1;  // the last token is only a target
  windows_ = std::max<int64_t>(inputs / seq_len - 1, 1);
  slack_ = inputs - windows_ * seq_len;
}

TokenWindow TrainSampler::window(int64_t sample) const {
  check(sample >= 0, "[sampler] sample {}", sample);
  const int64_t epoch = sample / windows_;
  const auto words = Philox(key_)(epoch);
  const int64_t offset = below(slack_ + 1, join(words[0], words[1]));
  const int64_t index = shuffled(sample % windows_, windows_, join(words[2], words[3]));
  return {offset + index * seq_len_, seq_len_};
}

ValidationSampler::ValidationSampler(const std::string& name, int64_t tokens, int64_t seq_len,
                                     int64_t limit)
    : seq_len_(seq_len), inputs_(tokens - 1) {
  check(seq_len > 0 && limit >= 0, "[sampler] seq_len {}, limit {}", seq_len, limit);
  if (tokens < 2)
    fail(Exit::data, "[{}] has {} tokens; a prediction needs at least 2: use more text", name,
         tokens);
  windows_ = (inputs_ + seq_len - 1) / seq_len;
  if (limit > 0) windows_ = std::min(windows_, limit);
}

TokenWindow ValidationSampler::window(int64_t sample) const {
  check(sample >= 0, "[sampler] sample {}", sample);
  if (sample >= windows_) return {};
  const int64_t start = sample * seq_len_;
  return {start, std::min(seq_len_, inputs_ - start)};
}

}  // namespace lockstep
