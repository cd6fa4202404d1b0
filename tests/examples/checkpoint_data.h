// What tests of checkpoints save and find again: values that tell their rank and step. Read next:
// checkpoint_test.cpp.
#pragma once

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dist/local.h"
#include "examples/checkpoint.h"
#include "tests/file_test_util.h"

namespace lockstep::test {

using Names = std::vector<std::string>;

// What rank `rank` would save after `step`: values tell both.
inline std::vector<NamedTensor> state(int rank, int64_t step, int64_t elements = 100) {
  const float value = static_cast<float>(1000 * rank + step);
  return {{"w", Tensor::from<float>(std::vector<float>(elements, value), {elements})},
          {"t", Tensor::from<int32_t>({static_cast<int32_t>(step)}, {1})}};
}

inline std::string file_of(int rank) {
  return fmt::format("rank-{:03}.safetensors", rank);
}

inline SaveRequest request(const std::string& folder, int rank, int64_t step, int64_t keep_last = 0,
                           int64_t elements = 100) {
  return {folder,
          step,
          {{file_of(rank), state(rank, step, elements)}},
          fmt::format("{{\"tokens\": {}}}", step * 7),
          keep_last};
}

inline void save(const std::string& folder, int64_t step, int ranks = 1, int64_t keep_last = 0) {
  run_local(ranks, {}, [&](Communicator& c) {
    const std::string path = save_checkpoint(c, request(folder, c.rank(), step, keep_last));
    EXPECT_EQ(path, fmt::format("{}/step-{:08}", folder, step));
  });
}

inline void expect_holds(const Checkpoint& checkpoint, int64_t step, int ranks = 1) {
  EXPECT_EQ(checkpoint.step, step);
  EXPECT_EQ(checkpoint.ranks, ranks);
  EXPECT_EQ(checkpoint.metadata, fmt::format("{{\"tokens\":{}}}", step * 7));
  for (int r = 0; r < ranks; ++r) {
    const SafetensorsFile file = checkpoint.open(file_of(r));
    const auto w = file.load("w").to_vector<float>();
    EXPECT_EQ(w, std::vector<float>(w.size(), static_cast<float>(1000 * r + step)));
    EXPECT_EQ(file.load("t").item<int32_t>(), step);
  }
}

inline std::optional<Checkpoint> latest(const std::string& folder,
                                        std::vector<std::string>* why = {}) {
  return find_latest_checkpoint(folder, [&](const std::string& text) {
    if (why) why->push_back(text);
  });
}

inline std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace lockstep::test
