// The fields of a Config as a flat list, in the order of the structs: path, address, help, limits.
// Reading, printing and help are loops over it. Read next: config_io.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "examples/config.h"

namespace lockstep {

struct ConfigField {
  std::string path;  // "optim.lr"
  std::string help;
  std::variant<std::string*, bool*, int*, int64_t*, double*, std::vector<double>*> value;
  std::optional<Choices> choices;
  std::optional<Range> range;
};

struct ConfigSection {
  std::string path;
  std::string help;
};

struct ConfigFields {
  std::vector<ConfigField> fields;
  std::vector<ConfigSection> sections;
};

// The visitor. A member that can itself be visited is a section, at any depth.
class FieldCollector {
 public:
  template <class T, class... Limit>
  void operator()(const std::string& name, T& member, const std::string& help, Limit... limit) {
    const std::string path = prefix_ + name;
    if constexpr (requires { member.visit(*this); }) {
      static_assert(sizeof...(Limit) == 0, "a section has no limits of its own");
      list_.sections.push_back({path, help});
      const std::string outer = std::exchange(prefix_, path + ".");
      member.visit(*this);
      prefix_ = outer;
    } else {
      ConfigField field{path, help, &member, {}, {}};
      (set_limit(field, std::move(limit)), ...);
      list_.fields.push_back(std::move(field));
    }
  }

  ConfigFields take() { return std::move(list_); }

 private:
  static void set_limit(ConfigField& field, Choices choices) { field.choices = std::move(choices); }
  static void set_limit(ConfigField& field, Range range) { field.range = range; }

  std::string prefix_;
  ConfigFields list_;
};

// The list points into `config`.
inline ConfigFields config_fields(Config& config) {
  FieldCollector collector;
  config.visit(collector);
  return collector.take();
}

}  // namespace lockstep
