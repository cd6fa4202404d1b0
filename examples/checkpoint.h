// Checkpoints: folders "step-00000100" that are complete or do not exist, whenever the run is
// killed.
//   save:  every rank writes and syncs its files in step-00000100.tmp; when all have, rank 0 writes
//          manifest.json (sizes and checksums), syncs it and the folder, renames the folder, syncs
//          the parent, and only then drops older ones (renamed to .tmp before they are removed).
//          An older checkpoint of the same step stands aside as step-00000100.old meanwhile.
//   load:  a checkpoint counts if its manifest is there and agrees with the files.
// It knows files, not what is in them (replica.h) nor when to save (trainer.h). All ranks must see
// the same file system. Read next: checkpoint.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/tensor.h"
#include "dist/communicator.h"
#include "examples/safetensors.h"

namespace lockstep {

// "FOLDER/step-00000100"
std::string checkpoint_path(const std::string& folder, int64_t step);

struct CheckpointFile {
  std::string name;  // as "rank-000.safetensors"; differs from those of all other ranks
  std::vector<NamedTensor> tensors;
};

struct SaveRequest {
  std::string folder;  // where the checkpoints of the run lie; exists, the same on all ranks
  int64_t step = 0;
  std::vector<CheckpointFile> files;  // of this rank; may be none
  std::string metadata = "{}";        // JSON of the caller; that of rank 0 is kept
  int64_t keep_last = 0;  // checkpoints up to this step that stay, this one included; 0: all
};

// Collective; returns the new checkpoint's path. An error is the same on all ranks, then nothing of
// this step is left on disk and older checkpoints are as they were: Exit::restart if the disk is
// full, so that the same command may be run again after making room. Checkpoints of later steps
// (damaged ones that a resume passed over) are left alone until their step is saved again.
std::string save_checkpoint(Communicator& communicator, const SaveRequest& request);

struct Checkpoint {
  std::string path;
  int64_t step = 0;
  int ranks = 0;         // that saved it
  std::string metadata;  // JSON
  std::map<std::string, FileSum> files;

  // Exit::data if the checkpoint has no such file.
  SafetensorsFile open(const std::string& name) const;
};

// `sizes` is for ranks that leave reading everything to rank 0.
enum class Check { sizes, checksums };

// Exit::data, naming the path and what is wrong, if the checkpoint is not complete.
Checkpoint open_checkpoint(const std::string& path, Check check = Check::checksums);

// Of what is wrong with the checkpoint at `path`, or with what is in it.
template <class... Args>
[[noreturn]] void refuse_checkpoint(const std::string& path, fmt::format_string<Args...> format,
                                    Args&&... args) {
  fail(Exit::data, "[checkpoint] {}: {}", path, fmt::format(format, std::forward<Args>(args)...));
}

// The newest complete checkpoint in `folder`; none if there is none at all. `refused` is told why
// newer ones were passed over. Exit::data if there are some and all of them were refused: starting
// over would hide the loss.
std::optional<Checkpoint> find_latest_checkpoint(
    const std::string& folder, const std::function<void(const std::string&)>& refused);

// A run that goes on from an older checkpoint, or anew, must not come back to what it abandoned:
// moves the checkpoints of steps after `step` aside, as "step-00000200.abandoned". Returns a line
// for the log on each. Only for the one writer of the run folder.
std::vector<std::string> set_later_aside(const std::string& folder, int64_t step);

// Clears what a killed run left: half-written and half-removed checkpoints go, one that stood aside
// comes back. Returns a line for the log on each. Only for the one writer of the run folder.
std::vector<std::string> clear_leftovers(const std::string& folder);

}  // namespace lockstep
