// `trainer bench`: measuring a part of the machine and of Lockstep. Read next: bench_command.h.
#include "examples/bench_command.h"

#include <CLI/CLI.hpp>
#include <fstream>

#include "core/file_error.h"
#include "examples/command.h"

namespace lockstep {

void check_json(const std::string& path) {
  if (path.empty()) return;
  errno = 0;
  if (!std::ofstream(path, std::ios::app)) fail_to("write", path, errno != 0 ? errno : EIO);
}

void write_json(const std::string& path, const std::string& json) {
  errno = 0;
  std::ofstream file(path);
  file << json << '\n';
  file.close();
  if (!file) fail_to("write", path, errno != 0 ? errno : EIO);
}

void print_load(const std::string& warning) {
  if (!warning.empty()) fmt::print("\n# {}\n", warning);
}

void add_bench_command(CLI::App& app, Exit& exit) {
  CLI::App* bench = app.add_subcommand("bench", "measure a part of the machine and of Lockstep");
  bench->require_subcommand(1);
  bench->footer("Example:\n  mpirun -np 2 trainer bench comm -b 1M -e 128M");
  add_bench_comm(*bench, exit);
  add_bench_gemm(*bench, exit);
  add_bench_step(*bench, exit);
}

}  // namespace lockstep
