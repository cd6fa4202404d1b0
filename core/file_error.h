// What the system refused of a file, as an error with one exit code per kind of cause, whoever
// wrote it. Reading is no matter of this: what cannot be read is bad input (Exit::data). Read next:
// error.h.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <string_view>

#include "core/error.h"

namespace lockstep {

// Whether making room is the remedy: disk full, quota, file size limit, I/O error.
inline bool room_helps(int reason) {
  return reason == ENOSPC || reason == EDQUOT || reason == EFBIG || reason == EIO;
}

// "[file] cannot ACTION PATH: reason DETAIL; remedy". `reason` is an errno. Exit::restart where
// room helps, so that the same command may be run again after making some, else Exit::config.
[[noreturn]] inline void fail_to(std::string_view action, const std::string& path, int reason,
                                 const std::string& detail = "") {
  const bool room = room_helps(reason);
  fail(room ? Exit::restart : Exit::config, "[file] cannot {} {}: {}{}; {}", action, path,
       std::strerror(reason), detail,
       room ? "make room and run the same command again" : "check the folder and its rights");
}

// fsync of what was written to a file, or of the names in a folder, so that they survive a crash.
inline void sync_path(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool synced = descriptor >= 0 && fsync(descriptor) == 0;
  const int reason = errno;
  if (descriptor >= 0) close(descriptor);
  if (!synced) fail_to("sync", path, reason);
}

// Exceeding a file size limit becomes such an error, where by default it kills (SIGXFSZ). For the
// whole process.
inline void make_file_limits_errors() {
  std::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace lockstep
