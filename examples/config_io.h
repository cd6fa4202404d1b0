// A Config from a JSON file and back. The file holds only what differs from the defaults; whatever
// it says and Config does not know is an error. Knows single values; rules between values are in
// validate.h. Read next: config_fields.h, config_io.cpp.
#pragma once

#include <string>
#include <vector>

#include "examples/config.h"

namespace lockstep {

// The defaults, then the file, then each override "path=value" in order. The value is JSON; for a
// field that holds text it may also stand without quotes. Exit::config for everything that is not a
// known key with a fitting value, Exit::usage for an override without "=".
Config read_config(const std::string& file, const std::vector<std::string>& overrides = {});

// The same from JSON text; `source` is for messages.
Config parse_config(const std::string& text, const std::string& source);

// All keys as JSON. Reading it gives the same Config, bit for bit.
std::string print_config(const Config& config);

// Every key with its type, default, allowed values and help, section by section.
std::string config_help();

}  // namespace lockstep
