// `trainer`: finds the subcommand, runs it, and turns errors into one line and an exit code
// (core/error.h). Read next: command.h.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "dist/launch.h"
#include "examples/command.h"
#include "examples/edit_distance.h"

namespace lockstep {

namespace {

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
  std::fprintf(stderr, "trainer: %s%s\n", who.c_str(), message.c_str());
  return code;
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
  else if (first != "--help" && first != "-h")
    arguments.insert(arguments.begin(), "train");

  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    const Innermost inner = innermost(app);
    std::fputs(inner.app->help(inner.parent).c_str(), bare ? stderr : stdout);
    return bare ? Exit::usage : Exit::ok;
  } catch (const CLI::ParseError& error) {
    fail(Exit::usage, "{}; see `{} --help`", error.what(), innermost(app).call());
  }
  return exit;
}

}  // namespace

}  // namespace lockstep

int main(int argc, char** argv) {
  using namespace lockstep;
  try {
    return static_cast<int>(run({argv + 1, argv + argc}));
  } catch (const Error& error) {
    return static_cast<int>(report(error.code(), error.what()));
  } catch (const std::exception& error) {
    return static_cast<int>(report(Exit::internal, error.what()));
  }
}
