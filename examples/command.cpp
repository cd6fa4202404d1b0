// Read next: bench_command.h.
#include "examples/command.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <string>

namespace lockstep {

CLI::Validator finite() {
  const auto complaint = [](const std::string& text) {
    double value = 0;
    const bool number = CLI::detail::lexical_cast(text, value);
    return number && std::isfinite(value) ? "" : text + " is not a finite number";
  };
  return CLI::Validator(complaint, "");
}

}  // namespace lockstep
