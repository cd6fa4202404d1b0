// Names to pieces, pieces to tensors. Read next: run_folder.h.
#include "examples/saved_state.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>

#include "core/plural.h"

namespace lockstep {

namespace {

// "wte.weight[0:4096].exp_avg" is elements 0 to 4095 of "wte.weight.exp_avg".
struct PieceName {
  std::string tensor;
  std::optional<std::pair<int64_t, int64_t>> range;
};

std::optional<int64_t> to_size(std::string_view digits) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value < 0) return {};
  return value;
}

PieceName parse_name(const std::string& name) {
  const size_t open = name.rfind('['), close = name.find(']', std::min(open, name.size()));
  if (open == std::string::npos || close == std::string::npos) return {name, {}};
  const std::string_view inside = std::string_view(name).substr(open + 1, close - open - 1);
  const size_t colon = std::min(inside.find(':'), inside.size());
  const auto begin = to_size(inside.substr(0, colon)),
             end = to_size(inside.substr(std::min(colon + 1, inside.size())));
  if (!begin || !end || *begin > *end) return {name, {}};
  return {name.substr(0, open) + name.substr(close + 1), {{*begin, *end}}};
}

// Of the sender, and so one on every rank; ".owner_residual" belongs to the shard.
bool is_residual(const std::string& tensor) {
  return tensor.ends_with(".residual");
}
bool is_of_rank(const std::string& tensor) {
  return is_residual(tensor) || tensor.ends_with(".rank_momentum");
}

std::set<std::string> residuals_in(const std::vector<NamedTensor>& state) {
  std::set<std::string> names;
  for (const NamedTensor& t : state)
    if (const std::string name = parse_name(t.name).tensor; is_residual(name)) names.insert(name);
  return names;
}

void add_floats(std::span<const std::byte> from, float* to) {
  for (size_t i = 0; i * sizeof(float) < from.size(); ++i) {
    float value;
    std::memcpy(&value, from.data() + i * sizeof value, sizeof value);
    to[i] += value;
  }
}

}  // namespace

std::string state_file(int rank) {
  return fmt::format("rank-{:03}.safetensors", rank);
}

std::vector<CheckpointFile> state_files(int rank, const std::vector<NamedTensor>& state) {
  CheckpointFile file{state_file(rank), {}};
  for (const NamedTensor& t : state)
    if (rank == 0 || parse_name(t.name).range) file.tensors.push_back(t);
  if (file.tensors.empty()) return {};
  return {file};
}

SavedState::SavedState(const Checkpoint& checkpoint)
    : path_(checkpoint.path), ranks_(checkpoint.ranks) {
  for (int rank = 0; rank < ranks_; ++rank)
    if (checkpoint.files.contains(state_file(rank))) add_file(path_ + "/" + state_file(rank), rank);
  for (auto& [key, pieces] : pieces_)
    std::stable_sort(pieces.begin(), pieces.end(),
                     [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
}

SavedState::SavedState(const std::string& file) : path_(file), ranks_(1) {
  add_file(file, 0);
}

void SavedState::add_file(const std::string& path, int rank) {
  files_.push_back(std::make_unique<SafetensorsFile>(path));
  for (const SafetensorsFile::Entry& entry : files_.back()->entries()) {
    const PieceName name = parse_name(entry.name);
    const auto [begin, end] = name.range.value_or(std::pair(int64_t{0}, numel(entry.shape)));
    pieces_[{name.tensor, is_of_rank(name.tensor) ? rank : 0}].push_back(
        {begin, end, !name.range, files_.back().get(), &entry});
  }
}

std::string SavedState::file_name(const Piece& piece) const {
  return std::filesystem::path(piece.file->path()).filename();
}

const std::vector<SavedState::Piece>& SavedState::pieces_of(const Key& key) const {
  const auto found = pieces_.find(key);
  if (found != pieces_.end()) return found->second;
  if (is_of_rank(key.first))
    refuse_checkpoint(path_, "{} has no tensor \"{}\"", state_file(key.second), key.first);
  refuse_checkpoint(path_, "no tensor \"{}\" in its {} files of tensors", key.first, files_.size());
}

// Calls visit(offset from `begin`, bytes) for the parts of [begin, end), in order.
template <class Visit>
void SavedState::visit_pieces(const Key& key, int64_t begin, int64_t end, DType dtype,
                              const Visit& visit) const {
  if (begin == end) return;
  const auto width = static_cast<int64_t>(size_of(dtype));
  int64_t at = begin, covered = 0;
  std::string before = "the start";
  for (const Piece& piece : pieces_of(key)) {
    if (piece.begin < covered)
      refuse_checkpoint(path_, "elements [{}:{}] of \"{}\" are in {} and again in {}", piece.begin,
                        std::min(covered, piece.end), key.first, before, file_name(piece));
    covered = piece.end;
    before = file_name(piece);
    if (piece.end <= at) continue;
    if (piece.begin >= end) break;
    if (piece.begin > at)
      refuse_checkpoint(path_, "elements [{}:{}] of \"{}\" are in no file; {} goes on with {}", at,
                        piece.begin, key.first, file_name(piece), piece.begin);
    const SafetensorsFile::Entry& entry = *piece.entry;
    if (entry.dtype != safetensors_name(dtype) || numel(entry.shape) != piece.end - piece.begin)
      refuse_checkpoint(path_, "\"{}\" in {} is {}{}, {} elements of {} are wanted", entry.name,
                        file_name(piece), entry.dtype, to_string(entry.shape),
                        piece.end - piece.begin, safetensors_name(dtype));
    const int64_t until = std::min(piece.end, end);
    visit(at - begin, piece.file->bytes(entry.name)
                          .subspan(static_cast<size_t>((at - piece.begin) * width),
                                   static_cast<size_t>((until - at) * width)));
    at = until;
    if (at == end) return;
  }
  refuse_checkpoint(path_,
                    "elements [{}:{}] of \"{}\" are in no file; {} is the last that has some", at,
                    end, key.first, before);
}

void SavedState::read(const NamedTensor& wanted) const {
  const PieceName name = parse_name(wanted.name);
  if (!name.range) check_shape(wanted);
  const auto [begin, end] = name.range.value_or(std::pair(int64_t{0}, wanted.tensor.numel()));
  check(wanted.tensor.contiguous() && end - begin == wanted.tensor.numel(),
        "[checkpoint] \"{}\" is read into {}", wanted.name, to_string(wanted.tensor));
  const DType dtype = wanted.tensor.dtype();
  visit_pieces({name.tensor, 0}, begin, end, dtype, [&](int64_t offset, auto bytes) {
    auto* to = static_cast<std::byte*>(wanted.tensor.raw());
    wanted.tensor.storage()->memory().write(to + offset * static_cast<int64_t>(size_of(dtype)),
                                            bytes.data(), bytes.size());
  });
}

void SavedState::check_shape(const NamedTensor& whole) const {
  if (whole.tensor.numel() == 0) return;
  const Piece& last = pieces_of({whole.name, 0}).back();
  if (last.end != whole.tensor.numel() || (last.whole && last.entry->shape != whole.tensor.shape()))
    refuse_checkpoint(path_, "\"{}\" has {} elements{} in {}, {} is wanted", whole.name, last.end,
                      last.whole ? " as " + to_string(last.entry->shape) : "", file_name(last),
                      to_string(whole.tensor.shape()));
}

void SavedState::check_parameters(const std::vector<NamedTensor>& all) const {
  std::set<std::string> names;
  for (const NamedTensor& parameter : all) {
    check_shape(parameter);
    names.insert(parameter.name);
  }
  // Optimizer state and residuals are called like their parameter, with one word more.
  for (const auto& [key, pieces] : pieces_) {
    const std::string& name = key.first;
    if (!names.contains(name) && !names.contains(name.substr(0, name.rfind('.'))))
      refuse_checkpoint(
          path_,
          "\"{}\" is no parameter of this model, nor of its optimizer state; the model "
          "that was saved is another one",
          name);
  }
}

// The first is copied, not added to zero, which would turn -0 into 0.
void SavedState::read_sum(const NamedTensor& wanted, int rank, int ranks) const {
  const PieceName name = parse_name(wanted.name);
  check(name.range && wanted.tensor.contiguous(), "[checkpoint] the sum \"{}\"", wanted.name);
  std::vector<float> sum(static_cast<size_t>(wanted.tensor.numel()));
  float* to = sum.data();
  for (int from = rank; from < ranks_ && contains(name.tensor); from += ranks)
    visit_pieces({name.tensor, from}, name.range->first, name.range->second, DType::f32,
                 [&](int64_t offset, auto bytes) {
                   if (from == rank)
                     std::memcpy(to + offset, bytes.data(), bytes.size());
                   else
                     add_floats(bytes, to + offset);
                 });
  wanted.tensor.copy_from_host(to);
}

void SavedState::restore(const std::vector<NamedTensor>& state, int rank, int ranks) const {
  for (const NamedTensor& wanted : state) {
    const std::string name = parse_name(wanted.name).tensor;
    if (is_of_rank(name))
      read_sum(wanted, rank, ranks);
    else if (name.ends_with(".owner_residual") && !contains(name))
      wanted.tensor.storage()->memory().zero(wanted.tensor.raw(), wanted.tensor.bytes());
    else
      read(wanted);
  }
}

std::vector<std::string> SavedState::residual_notes(const std::vector<NamedTensor>& state,
                                                    int ranks) const {
  const std::set<std::string> wanted = residuals_in(state);
  size_t kept = 0, dropped = 0;
  for (const auto& [key, pieces] : pieces_)
    if (is_residual(key.first) && key.second == 0) ++(wanted.contains(key.first) ? kept : dropped);
  const size_t started = wanted.size() - kept;
  std::vector<std::string> lines;
  if (kept > 0 && ranks != ranks_)
    lines.push_back(fmt::format("what codecs left out of {} on {} is summed up on {}",
                                plural(kept, "parameter"), plural(ranks_, "rank"),
                                std::min(ranks, ranks_)));
  if (started > 0)
    lines.push_back(fmt::format("error feedback of {} starts from zero: the checkpoint has none",
                                plural(started, "parameter")));
  if (dropped > 0)
    lines.push_back(fmt::format(
        "what codecs left out of {} is dropped: nothing makes up for it without error feedback",
        plural(dropped, "parameter")));
  return lines;
}

void check_finite(const NamedTensor& weight, const std::string& where) {
  const auto check_all = [&]<class T>(const std::vector<T>& values) {
    const auto bad = std::ranges::find_if(values, [](T x) { return !std::isfinite(to_float(x)); });
    if (bad != values.end())
      refuse_checkpoint(where,
                        "\"{}\" has {} at element {}; the run that saved it had diverged, an older "
                        "checkpoint may be right",
                        weight.name, to_float(*bad), bad - values.begin());
  };
  if (weight.tensor.dtype() == DType::bf16)
    check_all(weight.tensor.to_vector<bf16>());
  else
    check_all(weight.tensor.to_vector<float>());
}

}  // namespace lockstep
