// Looks through /proc for the launcher that stands between this process and the terminal.
#include "examples/terminal.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>

namespace lockstep {

namespace {

std::string proc(pid_t pid, const char* name) {
  return "/proc/" + std::to_string(pid) + "/" + name;
}

pid_t parent_of(pid_t pid) {
  std::ifstream file(proc(pid, "status"));
  for (std::string word; file >> word;)
    if (word == "PPid:") {
      file >> pid;
      return pid;
    }
  return 0;
}

// The process that Open MPI put this rank under, maybe with a script in between; 0 without Open
// MPI.
pid_t launcher() {
  if (!std::getenv("OMPI_COMM_WORLD_SIZE")) return 0;
  constexpr std::array<std::string_view, 5> names = {"mpirun", "orterun", "mpiexec", "prterun",
                                                     "orted"};
  for (pid_t pid = getppid(); pid > 1; pid = parent_of(pid)) {
    std::string name;
    std::ifstream(proc(pid, "comm")) >> name;
    for (std::string_view known : names)
      if (name == known) return pid;
  }
  return 0;
}

}  // namespace

std::string watching_terminal() {
  if (!isatty(STDOUT_FILENO)) return "";
  const pid_t from = launcher();
  std::error_code error;
  const auto target = std::filesystem::read_symlink(proc(from ? from : getpid(), "fd/1"), error);
  if (error) return "";
  const int descriptor = open(target.c_str(), O_RDONLY | O_NOCTTY | O_CLOEXEC);
  if (descriptor < 0) return "";
  const bool terminal = isatty(descriptor);
  close(descriptor);
  return terminal ? target.string() : "";
}

int terminal_columns(const std::string& terminal) {
  winsize size{};
  const int descriptor = open(terminal.c_str(), O_RDONLY | O_NOCTTY | O_CLOEXEC);
  if (descriptor >= 0) {
    ioctl(descriptor, TIOCGWINSZ, &size);
    close(descriptor);
  }
  return size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace lockstep
