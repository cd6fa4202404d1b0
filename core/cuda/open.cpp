// Loads the CUDA module: from beside the program, else from where it was built.
#include "core/cuda/open.h"

#include <dlfcn.h>

#include <filesystem>

namespace lockstep {

namespace {

// Never unloaded: the CUDA runtime does not survive that.
void* load_module() {
  const std::string built = LOCKSTEP_CUDA_MODULE;
  if (built.empty())
    fail(Exit::config, "no CUDA device: built without nvcc and cuBLAS; use device: cpu");
  std::error_code unknown;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", unknown);
  std::filesystem::path path = program.parent_path() / std::filesystem::path(built).filename();
  if (!std::filesystem::exists(path)) path = built;
  void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!module) fail(Exit::config, "no CUDA device: {}; use device: cpu", dlerror());
  return module;
}

}  // namespace

std::unique_ptr<CudaDevice> open_cuda(int index) {
  static void* module = load_module();
  const auto open = reinterpret_cast<CudaDevice* (*)(int)>(dlsym(module, "lockstep_open_cuda"));
  check(open != nullptr, "[cuda] the module has no lockstep_open_cuda: {}", dlerror());
  return std::unique_ptr<CudaDevice>(open(index));
}

}  // namespace lockstep
