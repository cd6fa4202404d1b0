// Two looks at /proc/stat, less what the ranks had themselves. Read next: bench_command.h.
#include "examples/machine_load.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "core/plural.h"

namespace lockstep {

namespace {

// Below this share of the cores, and of one core, others do not matter.
constexpr double kSmallShare = 0.1;
constexpr double kShortest_s = 0.5;  // the system counts in ticks of 10 ms

std::string file_text(const char* path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

double own_seconds() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// What a rank tells. Ranks of one process tell the same, and pretend hosts of one machine share it.
struct Told {
  size_t machine, process;
  ProcessorTime used;
  double own, seconds;
};

}  // namespace

// cpu  user nice system idle iowait irq softirq steal ..., in ticks; guests' time is within user's.
ProcessorTime parse_processor_time(const std::string& stat) {
  std::istringstream in(stat);
  std::string name;
  double ticks[8] = {};
  in >> name;
  for (double& t : ticks) in >> t;
  const double tick = 1.0 / static_cast<double>(sysconf(_SC_CLK_TCK));
  const auto [user, nice, system, idle, iowait, irq, softirq, steal] = ticks;
  return {tick * (user + nice + system + irq + softirq), tick * steal, tick * (idle + iowait)};
}

std::string load_warning(const ProcessorTime& machine, double own, double seconds,
                         const std::string& host) {
  if (seconds < kShortest_s) return {};
  const double cores = std::round((machine.busy + machine.stolen + machine.idle) / seconds);
  const double others = std::max(0.0, machine.busy - own) / seconds;
  const double stolen = machine.stolen / seconds, idle = machine.idle / seconds;
  if (others + stolen < kSmallShare * std::max(1.0, cores) || idle > others + stolen) return {};
  return fmt::format(
      "busy machine: on host {} other programs had {:.1f} and other guests {:.1f} of {} "
      "meanwhile; on a quiet one the figures would be better",
      host, others, stolen, plural(static_cast<int64_t>(cores), "core"));
}

MachineLoad::MachineLoad()
    : begun_s_(now_s()),
      machine_(parse_processor_time(file_text("/proc/stat"))),
      own_(own_seconds()) {}

std::string MachineLoad::warning(Communicator& communicator) const {
  static const char process = 0;  // its address differs from one process to the next
  const ProcessorTime now = parse_processor_time(file_text("/proc/stat"));
  const Told mine = {
      std::hash<std::string>()(file_text("/proc/sys/kernel/random/boot_id")),
      reinterpret_cast<size_t>(&process) ^ static_cast<size_t>(getpid()),
      {now.busy - machine_.busy, now.stolen - machine_.stolen, now.idle - machine_.idle},
      own_seconds() - own_,
      now_s() - begun_s_};
  const auto all = gather_values(communicator, std::vector<Told>{mine});
  std::map<size_t, double> own;  // by machine
  std::set<size_t> counted;
  for (const auto& told : all)
    if (counted.insert(told[0].process).second) own[told[0].machine] += told[0].own;
  for (int r = 0; r < communicator.size(); ++r) {
    const Told& told = all[r][0];
    const std::string text = load_warning(told.used, own[told.machine], told.seconds,
                                          communicator.topology().host_name[r]);
    if (!text.empty()) return text;
  }
  return {};
}

}  // namespace lockstep
