// Which backend a thread's ops run on. Read next: cpu/README.md.
#include "core/cpu/cpu_backend.h"

namespace lockstep {

std::string Backend::use_attention(const std::string& wanted, const Heads&, DType, int64_t,
                                   int64_t) {
  check(wanted != "cudnn", "[train.attention] cudnn is for device cuda, not {}", name());
  return "own kernels";
}

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
