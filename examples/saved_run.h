// SavedRun: what a checkpoint says of the run that made it, beside the tensors, and whether a run
// may go on from it. Read next: saved_run.cpp, then checkpoint.h.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "examples/config.h"

namespace lockstep {

struct SavedRun {
  std::string config;         // resolved, as print_config() writes it
  std::string data_identity;  // Dataset::identity() of data.train
  std::string tokenizer;      // Tokenizer::identity(), or none
  int64_t step = 0;
  int64_t global_batch = 0;  // samples per step
  int64_t skipped_in_a_row = 0;
  int ranks = 1;
  std::string accumulate = "local";  // or "reduced": DistConfig::accumulate as it was resolved
  int threads = 1;                   // per rank
  std::string cpu;                   // instruction set that the kernels were compiled for
  std::map<std::string, std::string> environment;  // relevant_environment()

  // What checkpoint.resume was.
  std::string resume() const;

  std::string to_json() const;
  static SavedRun from_json(const std::string& text, const std::string& where);  // Exit::data
};

// The first key in which two resolved configs are those of different runs: one that no resume may
// change. Exit::data if `before` is no config.
struct ConfigChange {
  std::string key, before, after;  // values as JSON
};
std::optional<ConfigChange> other_run(const std::string& before, const std::string& after);

// Exit::config if `now` would not continue what `saved` began: other model, data, batch, precision,
// seed or optimizer. Returns a line for the log about every difference that is allowed, and says
// where it costs equality of bits. ZeRO stage, bucket size, overlap and transport cost none.
std::vector<std::string> check_resumable(const SavedRun& saved, const SavedRun& now);

}  // namespace lockstep
