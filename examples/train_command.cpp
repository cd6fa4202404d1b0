// `trainer train`: a run config and overrides, to be shown or trained. Read next: config_io.h.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "examples/command.h"
#include "examples/config_io.h"
#include "examples/output_file.h"
#include "examples/trainer.h"

namespace lockstep {

namespace {

struct TrainOptions {
  std::string config;
  std::vector<std::string> set;
  bool print_config = false;
  bool help_config = false;
};

Exit train_action(const TrainOptions& options) {
  if (options.help_config) {
    std::fputs(config_help().c_str(), stdout);
    finish_output();
    return Exit::ok;
  }
  if (options.config.empty())
    fail(Exit::usage, "[train] no --config; name a run config, such as configs/quickstart.json");
  const Config config = read_config(options.config, options.set);
  if (options.print_config) {
    std::fputs(print_config(config).c_str(), stdout);
    finish_output();
    return Exit::ok;
  }
  return train(config);
}

}  // namespace

void add_train_command(CLI::App& app, Exit& exit) {
  CLI::App* command = app.add_subcommand("train", "train a model, or resume; the default");
  auto options = std::make_shared<TrainOptions>();
  add_config_options(*command, options->config, options->set);
  command->add_flag("--print-config", options->print_config,
                    "print the config with all defaults and overrides, and stop");
  command->add_flag("--help-config", options->help_config,
                    "print every key with its default and meaning, and stop");
  command->footer(
      "Example:\n"
      "  mpirun -np 2 trainer train --config configs/ddp-2.json --set optim.lr=1e-3 --set "
      "train.steps=100");
  command->callback([options, &exit] { exit = train_action(*options); });
}

}  // namespace lockstep
