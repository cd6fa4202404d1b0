// `trainer export`: a checkpoint's weights as one file that others read, however many ranks saved
// them. Without optimizer state: a run resumes from its checkpoints, or starts anew from an
// exported file (model.init_from). Read next: saved_state.h.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "core/allocator.h"
#include "examples/command.h"
#include "examples/config_io.h"
#include "examples/output_file.h"
#include "examples/saved_model.h"
#include "examples/saved_state.h"
#include "nn/gpt.h"

namespace lockstep {

namespace {

struct Options {
  ModelSource source;
  std::string out;
  bool masters = false;
};

// Of the run's model, whole: in the run's precision, or the fp32 masters of those that have one.
std::vector<NamedTensor> load_weights(const SavedModel& saved, bool masters) {
  const SavedState state(saved.checkpoint);
  Gpt model(saved.config.model, saved.config.train.dtype(), saved.config.train.seed);
  std::vector<NamedTensor> weights;
  for (const auto& [name, parameter] : model.parameters()) {
    const std::string master = name + ".master";
    const bool from_master = masters && state.contains(master);
    const Tensor weight = from_master ? Tensor::empty(parameter.shape()) : parameter.detach();
    state.read({from_master ? master : name, weight});
    check_finite({name, weight}, saved.checkpoint.path);
    weights.push_back({name, weight});
  }
  return weights;
}

void export_action(const Options& options) {
  const SavedModel saved = find_model(options.source);
  Allocator allocator(host_memory());
  AllocatorScope scope(allocator);
  const std::vector<NamedTensor> weights = load_weights(saved, options.masters);
  const TextMap metadata = {{"format", "pt"},  // whom Python's transformers ask for
                            {"checkpoint", saved.checkpoint.path},
                            {"step", std::to_string(saved.checkpoint.step)},
                            {"config", print_config(saved.config)}};
  const FileSum sum = replace_file(replaceable(options.out), [&](const std::string& beside) {
    return write_safetensors(beside, weights, metadata);
  });
  fmt::print("{}: {} tensors of step {}, {} bytes\n", options.out, weights.size(),
             saved.checkpoint.step, sum.bytes);
}

}  // namespace

void add_export_command(CLI::App& app, Exit& exit) {
  CLI::App* command = app.add_subcommand("export", "write a model as one safetensors file");
  auto options = std::make_shared<Options>();
  add_model_source(*command, options->source);
  command->add_option("--out", options->out, "the file; replaced as a whole if it exists")
      ->type_name("FILE")
      ->required();
  command->add_flag("--masters", options->masters,
                    "of a bf16 run: the fp32 masters instead of the bf16 weights");
  command->footer(
      "Example:\n"
      "  trainer export --run runs/quickstart --out model.safetensors");
  command->callback([options, &exit] {
    export_action(*options);
    exit = Exit::ok;
  });
}

}  // namespace lockstep
