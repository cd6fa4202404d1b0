// The parts of `trainer bench`, one file each. Read next: bench_step_command.cpp.
#pragma once

#include <string>

#include "core/error.h"

namespace CLI {
class App;
}

namespace lockstep {

void add_bench_comm(CLI::App& bench, Exit& exit);
void add_bench_gemm(CLI::App& bench, Exit& exit);
void add_bench_step(CLI::App& bench, Exit& exit);

// Ends a report with what MachineLoad says, if it says anything.
void print_load(const std::string& warning);

// For --json: before anything is measured, and at the end. Exit::config if the file cannot be
// written.
void check_json(const std::string& path);
void write_json(const std::string& path, const std::string& json);

}  // namespace lockstep
