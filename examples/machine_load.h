// Whether what was just measured is the machine's own speed or what its neighbours left of it. From
// /proc/stat, which counts the whole machine, and the ranks' own processor time. Read next:
// bench_command.h, whose figures it judges.
#pragma once

#include <string>

#include "dist/communicator.h"

namespace lockstep {

// Core-seconds, counted by the kernel.
struct ProcessorTime {
  double busy = 0;    // of all programs
  double stolen = 0;  // by other guests of the machine that this one runs on
  double idle = 0;
};
// Of this text of /proc/stat.
ProcessorTime parse_processor_time(const std::string& stat);

// Of one machine over `seconds`, where the ranks had `own` core-seconds. What to say about it:
// empty if others had hardly anything, or if more cores were idle than they had.
std::string load_warning(const ProcessorTime& machine, double own, double seconds,
                         const std::string& host);

class MachineLoad {
 public:
  MachineLoad();  // counts from now on
  // Of the first rank's machine that has one. Collective; the same on every rank.
  std::string warning(Communicator& communicator) const;

 private:
  double begun_s_;
  ProcessorTime machine_;
  double own_;
};

}  // namespace lockstep
