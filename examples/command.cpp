// What subcommands share. Read next: bench_command.h.
#include "examples/command.h"

#include <CLI/CLI.hpp>
#include <cmath>

namespace lockstep {

CLI::Option* add_config_options(CLI::App& command, std::string& config,
                                std::vector<std::string>& set) {
  CLI::Option* option =
      command.add_option("--config", config, "run config, a JSON file")->type_name("FILE");
  command.add_option("--set", set, "override one key of it; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  return option;
}

CLI::Validator finite() {
  const auto complaint = [](const std::string& text) {
    double value = 0;
    const bool number = CLI::detail::lexical_cast(text, value);
    return number && std::isfinite(value) ? "" : text + " is not a finite number";
  };
  return CLI::Validator(complaint, "");
}

}  // namespace lockstep
