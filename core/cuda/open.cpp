// Loads the CUDA module.
#include "core/cuda/open.h"

#include "core/load_module.h"

namespace lockstep {

namespace {

void* load() {
  std::string why = "built without nvcc and cuBLAS";
  void* module = load_module("lockstep_cuda.so", LOCKSTEP_CUDA_MODULE, why);
  if (!module) fail(Exit::config, "no CUDA device: {}; use device: cpu", why);
  return module;
}

template <class Function>
Function* entry(const char* name) {
  static void* module = load();
  return reinterpret_cast<Function*>(module_entry(module, name));
}

}  // namespace

std::vector<std::string> cuda_uuids() {
  std::vector<std::string> uuids;
  entry<void(std::vector<std::string>&)>("lockstep_cuda_uuids")(uuids);
  return uuids;
}

std::unique_ptr<Device> open_cuda(int index, Fp32Products products) {
  using Open = Device*(int, Fp32Products);
  return std::unique_ptr<Device>(entry<Open>("lockstep_open_cuda")(index, products));
}

}  // namespace lockstep
