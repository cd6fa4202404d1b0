// Each system call's place in the order below is the promise; see checkpoint.h. Read next:
// safetensors.h.
#include "examples/checkpoint.h"

#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/plural.h"
#include "examples/agree.h"
#include "examples/output_file.h"

namespace lockstep {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int format_version = 1;
constexpr const char* manifest_name = "manifest.json";

void make_folder(const std::string& path) {
  std::error_code error;
  if (!fs::create_directory(path, error)) fail_to("create", path, error ? error.value() : EEXIST);
}

void move_folder(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) fail_to("rename to " + to, from, errno);
}

void remove_tree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail_to("remove", path, error.value());
}

// The step of a folder name; none for names that Lockstep does not give.
std::optional<int64_t> step_of(const std::string& name) {
  const std::string digits = name.substr(std::min<size_t>(name.size(), 5));
  const bool number =
      std::all_of(digits.begin(), digits.end(), [](char c) { return '0' <= c && c <= '9'; });
  if (!name.starts_with("step-") || digits.size() < 8 || digits.size() > 18 || !number) return {};
  return std::stoll(digits);
}

struct Found {
  int64_t step;
  std::string path;
};

// Newest first; complete or not.
std::vector<Found> list_checkpoints(const std::string& folder) {
  std::vector<Found> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (const auto step = step_of(entry.path().filename())) found.push_back({*step, entry.path()});
  if (error && error != std::errc::no_such_file_or_directory)
    fail_to("list", folder, error.value());
  std::sort(found.begin(), found.end(), [](auto& a, auto& b) { return a.step > b.step; });
  return found;
}

uint64_t checksum(const json& value) {
  const std::string text = value.dump();
  return XXH3_64bits(text.data(), text.size());
}

std::string hex(uint64_t sum) {
  return fmt::format("{:016x}", sum);
}

// --- saving ---------------------------------------------------------------------------------

// Writes this rank's files and returns their part of the manifest.
std::string write_files(const std::string& folder, const std::vector<CheckpointFile>& files) {
  json entries = json::object();
  for (const CheckpointFile& file : files) {
    check(!file.name.empty() && file.name.find('/') == std::string::npos &&
              file.name != manifest_name && !entries.contains(file.name),
          "[checkpoint] the file name \"{}\"", file.name);
    const FileSum sum = write_safetensors(folder + "/" + file.name, file.tensors);
    entries[file.name] = {{"bytes", sum.bytes}, {"xxh3", hex(sum.xxh3)}};
  }
  return entries.dump();
}

void write_manifest(const std::string& folder, const SaveRequest& request,
                    const std::vector<std::string>& entries_by_rank) {
  json files = json::object();
  for (const std::string& text : entries_by_rank) {
    const json entries = json::parse(text);
    for (const auto& [name, entry] : entries.items()) {
      check(!files.contains(name), "[checkpoint] two ranks wrote {}", name);
      files[name] = entry;
    }
  }
  const json content = {{"version", format_version},
                        {"step", request.step},
                        {"ranks", entries_by_rank.size()},
                        {"files", files},
                        {"metadata", json::parse(request.metadata)}};
  const json manifest = {{"checkpoint", content}, {"xxh3", hex(checksum(content))}};
  const std::string text = manifest.dump(2) + "\n";
  OutputFile file(folder + "/" + manifest_name, static_cast<int64_t>(text.size()));
  file.write(text.data(), text.size());
  file.finish();
}

// From here on the folder counts. One of the same step stands aside.
void publish(const std::string& temporary, const std::string& path, const std::string& aside) {
  sync_path(temporary);
  const bool replaces = fs::exists(path);
  if (replaces) move_folder(path, aside);
  try {
    move_folder(temporary, path);
  } catch (const Error&) {
    if (replaces) move_folder(aside, path);
    throw;
  }
}

void drop_older(const SaveRequest& request) {
  if (request.keep_last == 0) return;
  int64_t kept = 0;
  for (const Found& found : list_checkpoints(request.folder)) {
    if (found.step > request.step || ++kept <= request.keep_last) continue;
    move_folder(found.path, found.path + ".tmp");  // gone at once, however long removing takes
    remove_tree(found.path + ".tmp");
  }
}

// --- loading --------------------------------------------------------------------------------

// The manifest's content, proved by its own checksum.
json read_manifest(const std::string& path) {
  const std::string name = path + "/" + manifest_name;
  if (!fs::is_directory(path))
    refuse_checkpoint(path, "no such folder; name one like RUN/checkpoints/step-00000100");
  if (!fs::exists(name))
    refuse_checkpoint(path, "no {}; it is not a checkpoint, or a part of one was removed",
                      manifest_name);
  const json manifest = json::parse(MappedFile(name).text(), nullptr, false);
  if (!manifest.is_object() || !manifest.contains("checkpoint") || !manifest.contains("xxh3") ||
      manifest["xxh3"] != hex(checksum(manifest["checkpoint"])))
    refuse_checkpoint(path, "{} is damaged: its checksum does not fit its content", manifest_name);
  json content = manifest["checkpoint"];
  if (content["version"] != format_version)
    refuse_checkpoint(path, "written in version {} of the format, this program reads version {}",
                      content["version"].dump(), format_version);
  return content;
}

void check_file(const std::string& path, const std::string& name, const FileSum& expected,
                Check how) {
  std::error_code error;
  const auto size = fs::file_size(path + "/" + name, error);
  if (error) refuse_checkpoint(path, "{} cannot be read: {}", name, error.message());
  if (static_cast<int64_t>(size) != expected.bytes)
    refuse_checkpoint(path, "{} has {} bytes, the manifest says {}", name, size, expected.bytes);
  if (how == Check::sizes) return;
  const FileSum found = sum_of_file(path + "/" + name);
  if (found != expected)
    refuse_checkpoint(path, "{} is damaged: its checksum is {}, the manifest says {}", name,
                      hex(found.xxh3), hex(expected.xxh3));
}

}  // namespace

std::string checkpoint_path(const std::string& folder, int64_t step) {
  return fmt::format("{}/step-{:08}", folder, step);
}

std::string save_checkpoint(Communicator& communicator, const SaveRequest& request) {
  const std::string path = checkpoint_path(request.folder, request.step);
  const std::string temporary = path + ".tmp", aside = path + ".old";
  try {
    on_rank_0(communicator, [&] {
      remove_tree(temporary);
      make_folder(temporary);
      return "";
    });
    const auto entries =
        all_or_none(communicator, [&] { return write_files(temporary, request.files); });
    on_rank_0(communicator, [&] {
      write_manifest(temporary, request, entries);
      publish(temporary, path, aside);
      return "";
    });
  } catch (const Error& error) {
    std::error_code ignored;  // the first error is the one to tell
    if (communicator.rank() == 0) fs::remove_all(temporary, ignored);
    fail(error.code(), "[checkpoint] step {} was not saved, older checkpoints are untouched: {}",
         request.step, error.what());
  }
  try {
    on_rank_0(communicator, [&] {
      sync_path(request.folder);
      remove_tree(aside);
      drop_older(request);
      return "";
    });
  } catch (const Error& error) {
    fail(error.code(), "[checkpoint] step {} was saved, but not cleared of older ones: {}",
         request.step, error.what());
  }
  return path;
}

Checkpoint open_checkpoint(const std::string& path, Check check) {
  const json content = read_manifest(path);
  const std::optional<int64_t> named = step_of(fs::path(path).filename());
  if (named && *named != content["step"])
    refuse_checkpoint(path, "its name says step {}, its {} step {}; name it after that", *named,
                      manifest_name, content["step"].dump());
  Checkpoint checkpoint{path, content["step"], content["ranks"], content["metadata"].dump(), {}};
  for (const auto& [name, entry] : content["files"].items()) {
    const FileSum sum{entry["bytes"], std::stoull(entry["xxh3"].get<std::string>(), nullptr, 16)};
    check_file(path, name, sum, check);
    checkpoint.files[name] = sum;
  }
  return checkpoint;
}

SafetensorsFile Checkpoint::open(const std::string& name) const {
  if (!files.contains(name))
    refuse_checkpoint(path, "no file {} in this checkpoint of {}", name, plural(ranks, "rank"));
  return SafetensorsFile(path + "/" + name);
}

std::optional<Checkpoint> find_latest_checkpoint(
    const std::string& folder, const std::function<void(const std::string&)>& refused) {
  const auto all = list_checkpoints(folder);
  for (const Found& found : all) {
    try {
      return open_checkpoint(found.path);
    } catch (const Error& error) {
      refused(error.what());
    }
  }
  if (!all.empty())
    refuse_checkpoint(folder,
                      "none of its {} checkpoints is complete; to start over, move them away",
                      all.size());
  return {};
}

std::vector<std::string> set_later_aside(const std::string& folder, int64_t step) {
  std::vector<std::string> lines;
  for (const Found& found : list_checkpoints(folder)) {
    if (found.step <= step) continue;
    std::string aside = found.path + ".abandoned";
    for (int i = 2; fs::exists(aside); ++i) aside = fmt::format("{}.abandoned-{}", found.path, i);
    move_folder(found.path, aside);
    lines.push_back(
        fmt::format("set {} aside as {}: this run goes on from step {}", found.path, aside, step));
  }
  return lines;
}

std::vector<std::string> clear_leftovers(const std::string& folder) {
  std::vector<std::string> lines, paths;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  for (const std::string& path : paths) {
    const fs::path name = fs::path(path).filename();
    if (!step_of(name.stem())) continue;
    const std::string final_path = folder + "/" + name.stem().string();
    if (name.extension() == ".old" && !fs::exists(final_path)) {
      move_folder(path, final_path);
      lines.push_back(fmt::format("restored {}, which was about to be replaced", final_path));
    } else if (name.extension() == ".tmp" || name.extension() == ".old") {
      remove_tree(path);
      lines.push_back(fmt::format("removed {}, left by a run that was killed", path));
    }
  }
  return lines;
}

}  // namespace lockstep
