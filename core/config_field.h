// The vocabulary in which config structs describe their fields. Each section of the run config is a
// struct that lives with its owner and has one member template
//   template <class V> void visit(V& v) { v("lr", lr, "peak learning rate", Range{0, 10}); ... }
// Reader, printer, help and the unknown-key check are visitors (examples/config*). Defaults are the
// member initialisers and stand nowhere else.
#pragma once

#include <initializer_list>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

// The values a string field may take.
struct Choices {
  std::vector<std::string_view> values;
  Choices(std::initializer_list<std::string_view> v) : values(v) {}
  explicit Choices(std::vector<std::string_view> v) : values(std::move(v)) {}
};

// The closed interval a number, or each number of a list, must lie in.
struct Range {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
};

}  // namespace lockstep
