// What main.cpp knows of the subcommands: each registers itself with its options, its help and its
// action. Read next: train_command.cpp.
#pragma once

#include "core/error.h"

namespace CLI {
class App;
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

// For an option's check(): refuses NaN and infinities, which CLI11's own ranges let pass.
CLI::Validator finite();

}  // namespace lockstep
