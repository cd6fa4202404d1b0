// `trainer`: finds the subcommand, runs it, and turns errors into one line and an exit code
// (core/error.h). Read next: command.h.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "dist/launch.h"
#include "dist/transport.h"
#include "examples/build_info.h"
#include "examples/command.h"
#include "examples/edit_distance.h"
#include "examples/output_file.h"

namespace lockstep {

namespace {

// One message is one line, whatever names it quotes.
std::string without_control_characters(const std::string& text) {
  std::string line;
  for (const char c : text)
    if (static_cast<unsigned char>(c) < 0x20)
      line += fmt::format("\\x{:02x}", static_cast<int>(c));
    else
      line += c;
  return line;
}

int mpirun_says(const char* variable, int otherwise) {
  const char* value = std::getenv(variable);
  return value ? std::atoi(value) : otherwise;
}

Exit report(Exit code, const std::string& message) {
  std::string who;
  if (mpirun_says("OMPI_COMM_WORLD_SIZE", 1) > 1) {
    const int rank = mpirun_says("OMPI_COMM_WORLD_RANK", 0);
    // What ranks agreed upon (agree.h) names the rank that failed already.
    if (!message.starts_with("rank ")) who = fmt::format("rank {} on {}: ", rank, host_name());
    // Most errors meet all ranks. Rank 0 speaks first, and mpirun ends the others by TERM a second
    // later; if it does not, rank 0 has nothing to say and they speak.
    if (rank > 0 && code != Exit::internal) {
      std::signal(SIGTERM, SIG_DFL);
      sleep(3);
    }
  }
  std::fprintf(stderr, "trainer: %s%s\n", who.c_str(), without_control_characters(message).c_str());
  return code;
}

// Else the first file that is opened gets the number, and with it what is printed.
void open_closed_standard_streams() {
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) std::abort();
}

void check_subcommand(const CLI::App& app, const std::string& name) {
  std::vector<std::string> known;
  for (const CLI::App* subcommand : app.get_subcommands({}))
    known.push_back(subcommand->get_name());
  if (std::find(known.begin(), known.end(), name) == known.end())
    fail(Exit::usage, "no subcommand \"{}\"; the nearest one is \"{}\", see `trainer --help`", name,
         nearest_path(name, known));
}

struct Innermost {
  const CLI::App* app;
  std::string parent;  // "trainer bench" of "trainer bench comm"; empty of "trainer"
  std::string call() const { return parent + (parent.empty() ? "" : " ") + app->get_name(); }
};

// The innermost subcommand that was named.
Innermost innermost(const CLI::App& app) {
  Innermost inner{&app, ""};
  while (!inner.app->get_subcommands().empty())
    inner = {inner.app->get_subcommands().front(), inner.call()};
  return inner;
}

Exit run(std::vector<std::string> arguments) {
  CLI::App app("Lockstep: data-parallel training of GPTs.", "trainer");
  app.footer("Without a subcommand it trains: trainer --config configs/quickstart.json");
  app.set_version_flag("--version", build_info, "say what was built from what, and exit");
  app.require_subcommand(1);
  Exit exit = Exit::ok;
  add_bench_command(app, exit);
  add_data_command(app, exit);
  add_export_command(app, exit);
  add_generate_command(app, exit);
  add_train_command(app, exit);

  const bool bare = arguments.empty();
  if (bare) arguments = {"--help"};
  const std::string first = arguments.front();
  if (!first.starts_with("-"))
    check_subcommand(app, first);
  else if (first != "--help" && first != "-h" && first != "--version")
    arguments.insert(arguments.begin(), "train");

  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    const Innermost inner = innermost(app);
    std::fputs(inner.app->help(inner.parent).c_str(), bare ? stderr : stdout);
    finish_output();
    return bare ? Exit::usage : Exit::ok;
  } catch (const CLI::CallForVersion& version) {
    fmt::print("{}\n", version.what());
  } catch (const CLI::ParseError& error) {
    fail(Exit::usage, "{}; see `{} --help`", error.what(), innermost(app).call());
  }
  // A console that went away is no reason to call a training run failed.
  if (!app.got_subcommand("train")) finish_output();
  return exit;
}

}  // namespace

}  // namespace lockstep

int main(int argc, char** argv) {
  using namespace lockstep;
  open_closed_standard_streams();
  try {
    return static_cast<int>(run({argv + 1, argv + argc}));
  } catch (const Error& error) {
    return static_cast<int>(report(error.code(), error.what()));
  } catch (const std::bad_alloc& error) {
    return static_cast<int>(report(Exit::config, failure_of(0, error).message));
  } catch (const std::exception& error) {
    return static_cast<int>(report(Exit::internal, error.what()));
  }
}
