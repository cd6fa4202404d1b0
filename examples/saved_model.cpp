// The checkpoint that --run or --checkpoint means. Read next: export_command.cpp.
#include "examples/saved_model.h"

#include <CLI/CLI.hpp>
#include <cstdio>

#include "examples/config_io.h"
#include "examples/run_folder.h"
#include "examples/saved_run.h"

namespace lockstep {

namespace {

Checkpoint find_checkpoint(const ModelSource& source) {
  if (!source.checkpoint.empty()) return open_checkpoint(source.checkpoint);
  const auto latest = find_latest_checkpoint(checkpoints_of(source.run), [](const auto& why) {
    std::fprintf(stderr, "trainer: passed over a checkpoint: %s\n", why.c_str());
  });
  if (latest) return *latest;
  fail(Exit::data, "[--run] {} has no checkpoint; name the run_dir of a run that saved one",
       source.run);
}

}  // namespace

void add_model_source(CLI::App& command, ModelSource& source) {
  CLI::Option_group* group = command.add_option_group("model", "one of");
  group->add_option("--run", source.run, "run folder; its newest complete checkpoint is used")
      ->type_name("FOLDER");
  group->add_option("--checkpoint", source.checkpoint, "one checkpoint")->type_name("FOLDER");
  group->require_option(1);
}

SavedModel find_model(const ModelSource& source) {
  const Checkpoint checkpoint = find_checkpoint(source);
  const SavedRun run = SavedRun::from_json(checkpoint.metadata, checkpoint.path);
  return {checkpoint, parse_config(run.config, checkpoint.path), run.tokenizer};
}

}  // namespace lockstep
