// What main.cpp knows of the subcommands: each registers itself with its options, its help and its
// action. Read next: train_command.cpp.
#pragma once

#include <string>
#include <vector>

#include "core/error.h"

namespace CLI {
class App;
class Option;
class Validator;
}  // namespace CLI

namespace lockstep {

// Adds a subcommand to `app`. When the command line has been parsed and names it, its action runs
// and leaves the process's exit code in `exit`; errors are thrown.
void add_bench_command(CLI::App& app, Exit& exit);
void add_data_command(CLI::App& app, Exit& exit);
void add_export_command(CLI::App& app, Exit& exit);
void add_generate_command(CLI::App& app, Exit& exit);
void add_train_command(CLI::App& app, Exit& exit);

// --config and --set, as read_config() takes them. Returns --config.
CLI::Option* add_config_options(CLI::App& command, std::string& config,
                                std::vector<std::string>& set);

// For an option's check(): refuses NaN and infinities, which CLI11's own ranges let pass.
CLI::Validator finite();

}  // namespace lockstep
