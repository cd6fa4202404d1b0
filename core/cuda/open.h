// The door to a GPU, and all that the rest of Lockstep sees of this folder. The kernels are a
// module of their own, loaded here and nowhere else: cuBLASLt costs every process that links it 80
// ms and 200 MB. Read next: module.cpp, cuda_backend.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/device.h"

namespace lockstep {

// How matrices of fp32 are multiplied: as they are, or on tensor cores, which round both factors
// to TF32 (10 bits of fraction; sums stay fp32). bf16 is multiplied the same way in both.
enum class Fp32Products { exact, tf32 };

// What each device that CUDA shows this process is known by everywhere, by index. At least one;
// else Error (Exit::config): no driver, no device, this build has no CUDA module, or the module
// does not load. Programs that call it are linked with ENABLE_EXPORTS: the module uses their copy
// of core.
std::vector<std::string> cuda_uuids();

// Device `index` of those. Same errors.
std::unique_ptr<Device> open_cuda(int index, Fp32Products products = Fp32Products::exact);

}  // namespace lockstep
