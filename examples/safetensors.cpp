// Reading trusts nothing: a header comes from a file that may be cut, foreign or forged. Read next:
// output_file.h.
#include "examples/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

namespace lockstep {

namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");

constexpr const char* metadata_key = "__metadata__";
constexpr uint64_t longest_header = 100'000'000;  // the limit of the reference implementation

// Every element type of the format, for the check of sizes; ours can be loaded as well.
struct Kind {
  const char* name;
  int64_t width;
  int ours;  // DType, or -1
};
constexpr std::array<Kind, 15> kinds = {{
    {"F64", 8, static_cast<int>(DType::f64)},
    {"F32", 4, static_cast<int>(DType::f32)},
    {"BF16", 2, static_cast<int>(DType::bf16)},
    {"I32", 4, static_cast<int>(DType::i32)},
    {"U8", 1, static_cast<int>(DType::u8)},
    {"BOOL", 1, -1},
    {"I8", 1, -1},
    {"F8_E5M2", 1, -1},
    {"F8_E4M3", 1, -1},
    {"I16", 2, -1},
    {"U16", 2, -1},
    {"F16", 2, -1},
    {"U32", 4, -1},
    {"I64", 8, -1},
    {"U64", 8, -1},
}};

const Kind* find_kind(const std::string& name) {
  const auto it = std::find_if(kinds.begin(), kinds.end(), [&](auto& k) { return name == k.name; });
  return it == kinds.end() ? nullptr : &*it;
}

// Names come from the file: quoted and escaped, so that a message stays one line.
std::string in_quotes(const std::string& name) {
  return json(name).dump();
}

template <class... Args>
[[noreturn]] void bad(const std::string& path, fmt::format_string<Args...> format, Args&&... args) {
  fail(Exit::data, "[safetensors] {}: {}", path, fmt::format(format, std::forward<Args>(args)...));
}

// Returns the length of the header, which follows the first 8 bytes.
int64_t header_length(const MappedFile& file) {
  if (file.size() < 8)
    bad(file.path(),
        "{} bytes; a safetensors file starts with 8 bytes that say how long its header is",
        file.size());
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  if (length > longest_header)
    bad(file.path(),
        "starts with a header length of {}, more than the format's limit of {}; this is no "
        "safetensors file",
        length, longest_header);
  if (length > static_cast<uint64_t>(file.size() - 8))
    bad(file.path(),
        "the header should end at byte {}, the file has {} bytes; it is cut: copy or write it "
        "again",
        length + 8, file.size());
  return static_cast<int64_t>(length);
}

json parse_header(const MappedFile& file, int64_t length) {
  const std::string_view text = file.text().substr(8, length);
  std::set<std::string> names;  // the parser would keep the last of two equal names
  const auto on_event = [&](int depth, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::key && depth == 1 &&
        !names.insert(value.get<std::string>()).second)
      bad(file.path(), "the header names {} twice", value.dump());
    return true;
  };
  json header;
  try {
    header = json::parse(text, on_event);
  } catch (const json::exception&) {
    bad(file.path(),
        "the header of {} bytes is not JSON; this is no safetensors file, or a damaged one",
        length);
  }
  if (!header.is_object())
    bad(file.path(), "the header is a JSON {}, not an object", header.type_name());
  return header;
}

bool is_size(const json& value) {
  return value.is_number_unsigned() &&
         value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
}

bool all_sizes(const json& list) {
  return list.is_array() && std::all_of(list.begin(), list.end(), is_size);
}

SafetensorsFile::Entry parse_entry(const std::string& path, const std::string& name,
                                   const json& value) {
  const bool complete = value.is_object() && value.size() == 3 && value.contains("dtype") &&
                        value.contains("shape") && value.contains("data_offsets");
  if (!complete || !value["dtype"].is_string() || !all_sizes(value["shape"]) ||
      !all_sizes(value["data_offsets"]) || value["data_offsets"].size() != 2)
    bad(path,
        "tensor {} is described by {}; {{\"dtype\": text, \"shape\": [sizes], "
        "\"data_offsets\": [begin, end]}} is right",
        in_quotes(name), value.dump());
  SafetensorsFile::Entry e{name, value["dtype"], value["shape"], value["data_offsets"][0],
                           value["data_offsets"][1]};
  const Kind* kind = find_kind(e.dtype);
  if (!kind)
    bad(path, "tensor {} has the unknown element type {}", in_quotes(name), in_quotes(e.dtype));
  int64_t bytes = kind->width;
  bool overflow = false;
  for (int64_t d : e.shape) overflow = overflow || __builtin_mul_overflow(bytes, d, &bytes);
  if (overflow || e.begin > e.end || e.end - e.begin != bytes)
    bad(path, "tensor {} is {}{} and lies at [{}, {}); its size and its place do not agree",
        in_quotes(name), e.dtype, to_string(e.shape), e.begin, e.end);
  return e;
}

TextMap parse_metadata(const std::string& path, const json& value) {
  const auto is_text = [](const json& v) { return v.is_string(); };
  if (!value.is_object() || !std::all_of(value.begin(), value.end(), is_text))
    bad(path, "{} must map texts to texts", metadata_key);
  return value.get<TextMap>();
}

}  // namespace

const char* safetensors_name(DType t) {
  return std::find_if(kinds.begin(), kinds.end(),
                      [&](auto& k) { return k.ours == static_cast<int>(t); })
      ->name;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  const int64_t length = header_length(file_);
  data_begin_ = 8 + length;
  const json header = parse_header(file_, length);
  for (const auto& [name, value] : header.items()) {
    if (name == metadata_key)
      metadata_ = parse_metadata(path, value);
    else
      entries_.push_back(parse_entry(path, name, value));
  }
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t end = 0;
  for (const Entry& e : entries_) {
    if (e.begin != end)
      bad(path, "tensor {} lies at [{}, {}), the one before it ends at {}; {}", in_quotes(e.name),
          e.begin, e.end, end, e.begin < end ? "they overlap" : "there is a hole");
    end = e.end;
    index_[e.name] = index_.size();
  }
  if (end != file_.size() - data_begin_)
    bad(path, "the header promises {} bytes of tensors, {} follow it; the file is {}", end,
        file_.size() - data_begin_,
        end > file_.size() - data_begin_ ? "cut: copy or write it again" : "too long");
}

const SafetensorsFile::Entry& SafetensorsFile::entry(const std::string& name) const {
  const auto it = index_.find(name);
  if (it != index_.end()) return entries_[it->second];
  std::string others;
  for (size_t i = 0; i < std::min<size_t>(entries_.size(), 3); ++i)
    others += (i ? ", " : ": ") + in_quotes(entries_[i].name);
  bad(path(), "no tensor {} among its {}{}{}", in_quotes(name), entries_.size(), others,
      entries_.size() > 3 ? ", ..." : "");
}

std::span<const std::byte> SafetensorsFile::bytes(const std::string& name) const {
  const Entry& e = entry(name);
  file_.check_size();
  return {file_.data() + data_begin_ + e.begin, static_cast<size_t>(e.end - e.begin)};
}

void SafetensorsFile::read(const std::string& name, const Tensor& into) const {
  check(into.contiguous(), "[safetensors] {} is read into {}, which is not contiguous", name,
        to_string(into));
  const Entry& e = entry(name);
  if (e.dtype != safetensors_name(into.dtype()) || e.shape != into.shape())
    bad(path(), "tensor {} is {}{}, {}{} is wanted", in_quotes(name), e.dtype, to_string(e.shape),
        safetensors_name(into.dtype()), to_string(into.shape()));
  const auto from = bytes(name);
  into.copy_from_host(from.data());
}

Tensor SafetensorsFile::load(const std::string& name) const {
  const Entry& e = entry(name);
  const Kind* kind = find_kind(e.dtype);
  if (kind->ours < 0)
    bad(path(), "tensor {} is {}{}; F32, BF16, F64, I32 or U8 can be loaded", in_quotes(name),
        e.dtype, to_string(e.shape));
  Tensor t = Tensor::empty(e.shape, static_cast<DType>(kind->ours));
  read(name, t);
  return t;
}

FileSum write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                          const TextMap& metadata) {
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& t : tensors) order.push_back(&t);
  std::stable_sort(order.begin(), order.end(), [](auto* a, auto* b) {
    return size_of(a->tensor.dtype()) > size_of(b->tensor.dtype());
  });

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[metadata_key] = metadata;
  int64_t offset = 0;
  for (const NamedTensor* t : order) {
    check(t->tensor.contiguous(), "[safetensors] {} is {}, which is not contiguous", t->name,
          to_string(t->tensor));
    check(!header.contains(t->name), "[safetensors] the name {} twice", t->name);
    const int64_t end = offset + static_cast<int64_t>(t->tensor.bytes());
    header[t->name] = {{"dtype", safetensors_name(t->tensor.dtype())},
                       {"shape", t->tensor.shape()},
                       {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');

  const uint64_t length = text.size();
  OutputFile file(path, static_cast<int64_t>(sizeof length + length) + offset);
  file.write(&length, sizeof length);
  file.write(text.data(), text.size());
  for (const NamedTensor* t : order)
    visit_bytes(t->tensor, [&](const void* piece, size_t bytes) { file.write(piece, bytes); });
  return file.finish();
}

}  // namespace lockstep
