// None, auto or a path, and what each finds. Read next: saved_run.h.
#include "examples/start_point.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "core/error.h"
#include "examples/checkpoint.h"
#include "examples/saved_run.h"

namespace lockstep {

namespace {

// The newest checkpoint of the folder, if it was saved by an attempt that was told `path`, too.
std::optional<Checkpoint> saved_since(const RunFolder& folder, const std::string& path,
                                      const std::function<void(const std::string&)>& warn) {
  std::optional<Checkpoint> newest;
  try {
    newest = find_latest_checkpoint(folder.checkpoints(), warn);
  } catch (const Error& error) {  // all are damaged: a reason to name another one
    if (error.code() != Exit::data) throw;
    warn(error.what());
  }
  if (newest && SavedRun::from_json(newest->metadata, newest->path).resume() != path) return {};
  return newest;
}

}  // namespace

StartPoint find_start(const RunFolder& folder, const std::string& resume,
                      const std::function<void(const std::string&)>& warn) {
  if (resume == "none") return {"", true, ""};
  if (resume == "auto") {
    const auto latest = find_latest_checkpoint(folder.checkpoints(), warn);
    return {latest ? latest->path : "", false, ""};
  }
  if (const auto since = saved_since(folder, resume, warn))
    return {since->path, false,
            fmt::format("checkpoint.resume {} is where this run started; it goes on from {}, which "
                        "it has saved since (to start from there again, move that away)",
                        resume, since->path)};
  return {open_checkpoint(resume).path, true, ""};
}

void check_same_run(const RunFolder& folder, const std::string& config) {
  std::ifstream file(folder.config_path(), std::ios::binary);
  const std::string before(std::istreambuf_iterator<char>(file), {});
  if (before.empty()) return;
  if (const auto change = other_run(before, config))
    fail(
        Exit::config,
        "[run_dir] {} holds another run, made with {} {} instead of {}; choose another run_dir, or "
        "move that one away",
        folder.path(), change->key, change->before, change->after);
}

}  // namespace lockstep
