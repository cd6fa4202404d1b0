// What /proc/meminfo and the limits of control groups leave. Read next: allocator.cpp.
#include "core/free_memory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>

namespace lockstep {

namespace {

using std::filesystem::path;
constexpr size_t unlimited = std::numeric_limits<size_t>::max();

// Lines of a key and a number; what comes behind it is a unit.
std::map<std::string, size_t> read_numbers(const path& file) {
  std::map<std::string, size_t> numbers;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string key;
    size_t value = 0;
    if (words >> key >> value) numbers[key] = value;
  }
  return numbers;
}

// "max" and a missing file are no limit.
size_t read_number(const path& file) {
  std::ifstream in(file);
  size_t bytes = 0;
  return in >> bytes ? bytes : unlimited;
}

size_t machine_leaves(const path& root) {
  const auto kilobytes = read_numbers(root / "proc/meminfo");
  const auto available = kilobytes.find("MemAvailable:"), swap = kilobytes.find("SwapFree:");
  if (available == kilobytes.end()) return unlimited;
  return 1024 * (available->second + (swap == kilobytes.end() ? 0 : swap->second));
}

// The names of the files differ between the two versions of control groups.
struct GroupFiles {
  const char *limit, *usage, *inactive, *active;
};
constexpr GroupFiles version_1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                  "total_inactive_file", "total_active_file"};
constexpr GroupFiles version_2 = {"memory.max", "memory.current", "inactive_file", "active_file"};

size_t group_leaves(const path& group, const GroupFiles& files) {
  const size_t limit = read_number(group / files.limit), used = read_number(group / files.usage);
  if (limit == unlimited || used == unlimited) return unlimited;
  auto stat = read_numbers(group / "memory.stat");
  const size_t taken = used - std::min(used, stat[files.inactive] + stat[files.active]);
  return limit - std::min(limit, taken);
}

// Of the group and all it is in: each may have a limit. Inside a container the path may be one that
// only the host knows; then the top is what there is.
size_t groups_leave(const path& top, const path& group, const GroupFiles& files) {
  size_t least = unlimited;
  for (path at = top / group.relative_path(); at != top.parent_path(); at = at.parent_path())
    least = std::min(least, group_leaves(at, files));
  return least;
}

}  // namespace

size_t free_memory(const std::string& root) {
  size_t least = machine_leaves(root);
  const path groups = path(root) / "sys/fs/cgroup";
  // "4:memory:/path" of version 1, "0::/path" of version 2.
  std::ifstream in(path(root) / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const path group = line.substr(second + 1);
    if (controllers.empty()) least = std::min(least, groups_leave(groups, group, version_2));
    if (controllers == "memory")
      least = std::min(least, groups_leave(groups / "memory", group, version_1));
  }
  return least;
}

size_t free_memory() {
  return free_memory("/");
}

bool fits_memory(size_t bytes) {
  constexpr size_t kept = 64 << 20;
  const size_t left = free_memory();
  return bytes <= left && left - bytes >= kept;
}

}  // namespace lockstep
