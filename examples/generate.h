// Text from a model: one token after the other, each from a full forward pass (no cache: Lockstep
// trains, it does not serve). Read next: generate_command.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "nn/gpt.h"

namespace lockstep {

struct GenerateOptions {
  int64_t tokens = 200;      // how many to append
  double temperature = 0.8;  // 0: always the most likely token
  int64_t top_k = 0;         // only the k most likely tokens; 0: all
  int64_t vocab_size = 0;    // only ids below it, which have text; 0: all the model has
  uint64_t seed = 0;         // token i depends on (seed, i) and the model
};

// The prompt (at least one token) and what follows it; the model sees the last max_seq_len tokens.
std::vector<int32_t> generate(Gpt& model, std::vector<int32_t> prompt,
                              const GenerateOptions& options);

}  // namespace lockstep
