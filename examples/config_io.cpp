// The lists that config_fields.h makes, against JSON from nlohmann/json, which is used nowhere else
// for configs. Read next: validate.h.
#include "examples/config_io.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "data/tokenizer.h"
#include "examples/config_fields.h"
#include "examples/edit_distance.h"

namespace lockstep {

namespace {

using Json = nlohmann::ordered_json;

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

// --- text to JSON ---

std::string position(const std::string& text, size_t offset) {
  offset = std::min(offset, text.size());
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(offset);
  const size_t newline = offset == 0 ? std::string::npos : text.rfind('\n', offset - 1);
  const size_t column = newline == std::string::npos ? offset + 1 : offset - newline;
  return fmt::format("{}:{}", 1 + std::count(text.begin(), end, '\n'), column);
}

// JSON allows a key twice and the library keeps the last one; here that is always a slip. And it
// would exhaust the stack on what is nested too deeply.
class ParserChecks {
 public:
  explicit ParserChecks(std::string source) : source_(std::move(source)) {}

  bool operator()(int depth, Json::parse_event_t event, const Json& value) {
    if (depth > deepest)
      fail(Exit::config, "[config] {}: nested more than {} deep; a section in a section is right",
           source_, deepest);
    if (event == Json::parse_event_t::object_start) open_.emplace_back();
    if (event == Json::parse_event_t::object_end) open_.pop_back();
    if (event == Json::parse_event_t::key) {
      Object& object = open_.back();
      object.key = value.get<std::string>();
      if (!object.seen.insert(object.key).second)
        fail(Exit::config, "[config] {}: key \"{}\" stands twice; keep one of them", source_,
             path());
    }
    return true;
  }

 private:
  static constexpr int deepest = 20;
  struct Object {
    std::string key;
    std::set<std::string> seen;
  };

  std::string path() const {
    std::string path;
    for (const Object& object : open_) path += (path.empty() ? "" : ".") + object.key;
    return path;
  }

  std::string source_;
  std::vector<Object> open_;
};

// What the library says, without its error number and its way of naming the position.
std::string cause(const std::string& message) {
  for (const std::string_view before : {" - ", "] "})
    if (const size_t at = message.find(before); at != std::string::npos)
      return message.substr(at + before.size());
  return message;
}

Json parse(const std::string& text, const std::string& source) {
  try {
    Json json = Json::parse(text, Json::parser_callback_t(ParserChecks(source)));
    if (json.is_object()) return json;
    fail(Exit::config, "[config] {}: must hold a JSON object, found {}", source, json.type_name());
  } catch (const nlohmann::json::parse_error& error) {
    // error.byte counts from 1 and is the last byte that was read.
    fail(Exit::config, "[config] {}:{}: not JSON: {}", source,
         position(text, error.byte > 0 ? error.byte - 1 : 0), cause(error.what()));
  } catch (const nlohmann::json::exception& error) {
    fail(Exit::config, "[config] {}: {}", source, cause(error.what()));
  }
}

std::string read_text(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream || std::filesystem::is_directory(file))
    fail(Exit::config, "[config] {}: no such file, or it cannot be read; name a JSON run config",
         file);
  std::ostringstream content;
  content << stream.rdbuf();
  return content.str();
}

// --- JSON to Config ---

std::string expected(const ConfigField& field) {
  return std::visit(
      Overloaded{[](std::string*) { return "a string"; }, [](bool*) { return "true or false"; },
                 [](int*) { return "a whole number"; }, [](int64_t*) { return "a whole number"; },
                 [](double*) { return "a number"; },
                 [](std::vector<double>*) { return "a list of numbers"; }},
      field.value);
}

class Assigner {
 public:
  // `source` is the file or "--set".
  Assigner(ConfigFields& list, std::string source) : list_(list), source_(std::move(source)) {}

  void assign(const std::string& path, const Json& value) {
    if (const ConfigField* field = find(list_.fields, path)) return assign_field(*field, value);
    if (!find(list_.sections, path)) unknown(path);
    if (!value.is_object()) wrong(path, "a section, that is a JSON object", value);
    assign_members(path + ".", value);
  }

  void assign_members(const std::string& prefix, const Json& object) {
    for (const auto& [key, value] : object.items()) {
      if (key.find('.') != std::string::npos)
        fail(Exit::config, "[config] {}: key \"{}\" has a dot; sections are objects of their own",
             source_, prefix + key);
      assign(prefix + key, value);
    }
  }

  void assign_override(const std::string& path, const std::string& text) {
    const ConfigField* field = find(list_.fields, path);
    Json value = Json::parse(text, Json::parser_callback_t(ParserChecks(source_)), false);
    const bool is_text = field && std::holds_alternative<std::string*>(field->value);
    if (value.is_discarded() || (is_text && !value.is_string())) value = text;
    assign(path, value);
  }

 private:
  template <class T>
  static const T* find(const std::vector<T>& list, const std::string& path) {
    const auto found =
        std::find_if(list.begin(), list.end(), [&](const T& item) { return item.path == path; });
    return found == list.end() ? nullptr : &*found;
  }

  [[noreturn]] void unknown(const std::string& path) const {
    std::vector<std::string> known;
    for (const ConfigField& field : list_.fields) known.push_back(field.path);
    for (const ConfigSection& section : list_.sections) known.push_back(section.path);
    fail(Exit::config, "[config] {}: unknown key \"{}\"; the nearest one is \"{}\"", source_, path,
         nearest_path(path, known));
  }

  [[noreturn]] void wrong(const std::string& path, std::string_view expected,
                          const Json& found) const {
    fail(Exit::config, "[config] {}: {} must be {}, found {}", source_, path, expected,
         found.dump(-1, ' ', false, Json::error_handler_t::replace));
  }

  void assign_field(const ConfigField& field, const Json& value) const {
    std::visit(Overloaded{
                   [&](std::string* to) {
                     if (!value.is_string()) wrong(field.path, expected(field), value);
                     *to = value.get<std::string>();
                     check_choice(field, *to);
                   },
                   [&](bool* to) {
                     if (!value.is_boolean()) wrong(field.path, expected(field), value);
                     *to = value.get<bool>();
                   },
                   [&](int* to) { *to = whole_number<int>(field, value); },
                   [&](int64_t* to) { *to = whole_number<int64_t>(field, value); },
                   [&](double* to) { *to = number(field, value, value); },
                   [&](std::vector<double>* to) {
                     if (!value.is_array()) wrong(field.path, expected(field), value);
                     to->clear();
                     for (const Json& item : value) to->push_back(number(field, item, value));
                   },
               },
               field.value);
  }

  double number(const ConfigField& field, const Json& item, const Json& whole) const {
    if (!item.is_number()) wrong(field.path, expected(field), whole);
    check_range(field, item.get<double>());
    return item.get<double>();
  }

  // 1e6 is a whole number too, if it is one exactly.
  template <class T>
  T whole_number(const ConfigField& field, const Json& value) const {
    if (!value.is_number()) wrong(field.path, expected(field), value);
    check_range(field, value.get<double>());
    if (value.is_number_float()) {
      const double number = value.get<double>();
      const double bound = std::ldexp(1.0, std::numeric_limits<T>::digits);
      if (std::trunc(number) == number && std::abs(number) < bound) return static_cast<T>(number);
    } else {
      const bool fits = value.is_number_unsigned() ? std::in_range<T>(value.get<uint64_t>())
                                                   : std::in_range<T>(value.get<int64_t>());
      if (fits) return value.get<T>();
    }
    wrong(field.path, expected(field), value);
  }

  void check_choice(const ConfigField& field, const std::string& value) const {
    if (!field.choices) return;
    const auto& allowed = field.choices->values;
    if (std::find(allowed.begin(), allowed.end(), value) == allowed.end())
      fail(Exit::config, "[config] {}: {} must be one of {}, found \"{}\"", source_, field.path,
           fmt::join(allowed, ", "), value);
  }

  void check_range(const ConfigField& field, double value) const {
    if (!field.range || (value >= field.range->least && value <= field.range->most)) return;
    fail(Exit::config, "[config] {}: {} must be {}, found {}", source_, field.path,
         describe(*field.range), value);
  }

  static std::string describe(const Range& range) {
    return std::isinf(range.most) ? fmt::format("at least {}", range.least)
                                  : fmt::format("from {} to {}", range.least, range.most);
  }

  ConfigFields& list_;
  std::string source_;
};

// --- Config to JSON and help ---

Json to_json(const ConfigField& field) {
  return std::visit([](const auto* value) { return Json(*value); }, field.value);
}

std::string limits(const ConfigField& field) {
  if (field.choices) return fmt::format("{}", fmt::join(field.choices->values, " | "));
  std::string text = expected(field);
  if (!field.range) return text;
  if (std::isinf(field.range->most)) return fmt::format("{}, >= {}", text, field.range->least);
  return fmt::format("{}, {} to {}", text, field.range->least, field.range->most);
}

}  // namespace

Config parse_config(const std::string& text, const std::string& source) {
  Config config;
  ConfigFields list = config_fields(config);
  Assigner(list, source).assign_members("", parse(text, source));
  return config;
}

Config read_config(const std::string& file, const std::vector<std::string>& overrides) {
  Config config = parse_config(read_text(file), file);
  ConfigFields list = config_fields(config);
  for (const std::string& text : overrides) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0)
      fail(Exit::usage, "[config] --set {}: write --set key=value, such as --set optim.lr=1e-3",
           text);
    if (const size_t bad = invalid_utf8(text); bad != text.npos)
      fail(Exit::usage, "[config] --set {}...: not UTF-8 at byte {}", text.substr(0, bad), bad);
    Assigner(list, "--set").assign_override(text.substr(0, equals), text.substr(equals + 1));
  }
  return config;
}

std::string print_config(const Config& config) {
  Config copy = config;
  Json json = Json::object();
  for (const ConfigField& field : config_fields(copy).fields) {
    std::string pointer = "/" + field.path;
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    json[Json::json_pointer(pointer)] = to_json(field);
  }
  return json.dump(2) + "\n";
}

std::string config_help() {
  Config defaults;
  const ConfigFields list = config_fields(defaults);
  std::string text = "Keys of a run config: key = default (allowed values), and what it means.\n";
  std::string section;
  for (const ConfigField& field : list.fields) {
    const size_t dot = field.path.rfind('.');
    const std::string parent = dot == std::string::npos ? "" : field.path.substr(0, dot);
    if (parent != section)
      for (const ConfigSection& s : list.sections)
        if (s.path == parent) text += fmt::format("\n{}: {}\n", s.path, s.help);
    section = parent;
    text += fmt::format("  {} = {}  ({})\n      {}\n", field.path, to_json(field).dump(),
                        limits(field), field.help);
  }
  return text;
}

}  // namespace lockstep
