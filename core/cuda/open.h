// The door to a GPU, and all that the rest of Lockstep sees of this folder. The kernels are a
// module of their own, loaded here and nowhere else: cuBLASLt costs every process that links it 80
// ms and 200 MB. Read next: module.cpp, cuda_backend.h.
#pragma once

#include <memory>
#include <string>

#include "core/backend.h"

namespace lockstep {

// A GPU with one stream, on which kernels, copies and memory follow each other in order.
class CudaDevice {
 public:
  virtual ~CudaDevice() = default;
  virtual std::string description() const = 0;  // "NVIDIA H200, 139.8 GiB, sm_90"
  virtual Backend& backend() = 0;
  virtual MemorySource& memory() = 0;
  // Between host and device memory in any direction; returns when it is done.
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual void synchronize() = 0;
};

// Device `index` of those that CUDA shows this process. Error (Exit::config) if there is none, if
// this build has no CUDA module, or if the module does not load. Programs that call it are linked
// with ENABLE_EXPORTS: the module uses their copy of core.
std::unique_ptr<CudaDevice> open_cuda(int index);

}  // namespace lockstep
