// Which figure counts what. Read next: recorded_steps.h.
#include "examples/step_account.h"

#include <algorithm>

namespace lockstep {

StepAccount::StepAccount(const Loader& loader, const MemoryStats& memory)
    : loader_(loader),
      waited_before_s_(loader.waited_seconds()),
      allocations_before_(memory.system_allocations) {}

RankTime StepAccount::gradients_complete(const GradientReport& report) {
  own_.data_ms = 1e3 * (loader_.waited_seconds() - waited_before_s_);
  own_.compute_ms = step_.ms() - report.exposed_ms - own_.data_ms;
  sync_ = {};
  return own_;
}

void StepAccount::losses_known() {
  sync_ms_ = sync_.ms();
}

StepMetrics StepAccount::costs(const GradientReport& report, const MemoryStats& memory) const {
  StepMetrics m;
  m.data_ms = own_.data_ms;
  m.comm_ms = report.comm_ms;
  // What finish() waited beyond the communication itself, it waited for others to run.
  m.exposed_comm_ms = std::min(report.exposed_ms - report.wait_ms, report.comm_ms);
  m.wait_ms = report.exposed_ms - m.exposed_comm_ms + sync_ms_;
  m.step_ms = step_.ms();
  m.compute_ms = m.step_ms - m.data_ms - m.exposed_comm_ms - m.wait_ms;

  m.wire_bytes = report.wire_bytes + report.param_bytes;
  m.param_bytes = report.param_bytes;
  m.host_bytes = report.host_bytes;
  if (report.packed_bytes > 0)
    m.compression =
        static_cast<double>(report.unpacked_bytes) / static_cast<double>(report.packed_bytes);

  m.peak_bytes = memory.total_peak;
  m.allocations = memory.system_allocations - allocations_before_;
  return m;
}

}  // namespace lockstep
