// Who records for this thread. Read next: cuda/graph.cpp.
#include "core/recording.h"

#include <utility>

namespace lockstep {

namespace {
thread_local Recorder* current_recorder = nullptr;
thread_local HostParts* host_parts = nullptr;
}  // namespace

Recorder* Recorder::current() {
  return current_recorder;
}

RecorderScope::RecorderScope(Recorder* recorder)
    : previous_(std::exchange(current_recorder, recorder)) {}
RecorderScope::~RecorderScope() {
  current_recorder = previous_;
}

HostPartsScope::HostPartsScope(HostParts* parts) : previous_(std::exchange(host_parts, parts)) {}
HostPartsScope::~HostPartsScope() {
  host_parts = previous_;
}

void repeat_on_host(const std::function<void()>& f) {
  host_parts ? host_parts->on_host(f) : f();
}
void repeat_between_kernels(const std::function<void()>& f) {
  host_parts ? host_parts->between_kernels(f) : f();
}

}  // namespace lockstep
