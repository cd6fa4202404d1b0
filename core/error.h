// Errors and the exit codes they stand for. Every message says what was wrong, where, and what
// would be right, as "[where] what; remedy". Nothing here prints or exits: `main` does, once per
// process. Read next: dtype.h.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace lockstep {

// Process exit codes, after sysexits.h.
enum class Exit {
  ok = 0,
  usage = 64,     // wrong command line
  data = 65,      // unreadable, truncated or foreign input file
  internal = 70,  // a broken invariant of Lockstep itself
  restart = 75,   // may be run again: peer lost, watchdog, full disk, signal after a checkpoint
  config = 78,    // the run config, or what it asks of this machine
};

class Error : public std::runtime_error {
 public:
  Error(Exit code, const std::string& message) : std::runtime_error(message), code_(code) {}
  Exit code() const { return code_; }

 private:
  Exit code_;
};

template <class... Args>
[[noreturn]] void fail(Exit code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

// Precondition of an op or function; a failure is a programming error (Exit::internal).
template <class... Args>
void check(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) [[unlikely]]
    fail(Exit::internal, format, std::forward<Args>(args)...);
}

}  // namespace lockstep
