// What somebody probably meant: the nearest of several known names. Read next: config_io.cpp.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

// Levenshtein's distance: insertions, deletions and replacements that turn a into b.
inline size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() +
                          1);  // row[j]: distance of a's first i characters to b's first j
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replace = diagonal + (a[i] != b[j]);
      diagonal = std::exchange(row[j + 1], std::min({row[j] + 1, row[j + 1] + 1, replace}));
    }
  }
  return row.back();
}

// The nearest of `known` dotted paths. The right last name in the wrong section ("lr", "model.lr")
// counts as one slip; a path of another depth is two farther per level.
inline std::string nearest_path(std::string_view path, const std::vector<std::string>& known) {
  const auto leaf = [](std::string_view p) { return p.substr(p.rfind('.') + 1); };
  const auto depth = [](std::string_view p) { return std::count(p.begin(), p.end(), '.'); };
  const auto distance = [&](std::string_view candidate) -> size_t {
    if (leaf(path) == leaf(candidate)) return 1;
    return edit_distance(path, candidate) + 2 * std::abs(depth(path) - depth(candidate));
  };
  return *std::min_element(
      known.begin(), known.end(),
      [&](const std::string& x, const std::string& y) { return distance(x) < distance(y); });
}

}  // namespace lockstep
