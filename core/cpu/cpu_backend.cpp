// Which backend a thread's ops run on. Read next: cpu/README.md.
#include "core/cpu/cpu_backend.h"

namespace lockstep {

namespace {
thread_local Backend* current_backend = nullptr;
}

Backend& cpu_backend() {
  static CpuBackend cpu;
  return cpu;
}

Backend& backend() {
  return current_backend ? *current_backend : cpu_backend();
}

BackendScope::BackendScope(Backend& backend) : previous_(current_backend) {
  current_backend = &backend;
}
BackendScope::~BackendScope() {
  current_backend = previous_;
}

}  // namespace lockstep
