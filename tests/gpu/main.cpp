// Runs the tests of kernels and ops on this machine's GPU: the same sources as for the CPU.
// They follow pointers, so tensors lie in managed memory and every kernel ends before its launch
// returns; slow, and for tests only. Without a GPU it says why and ends with 77 (skipped).
//   gpu_test --describe   what the GPU is; 78 and the reason if there is none
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/cuda/open.h"

namespace lockstep {
namespace {

class ManagedMemory : public MemorySource {
 public:
  void* allocate(size_t bytes) override {
    void* p = nullptr;
    const cudaError_t result = cudaMallocManaged(&p, bytes, cudaMemAttachGlobal);
    check(result == cudaSuccess, "[gpu test] cudaMallocManaged: {}", cudaGetErrorString(result));
    std::memset(p, 0xff, bytes);  // as on the emulated device: nothing is zero by luck
    return p;
  }
  void release(void* p, size_t) override { cudaFree(p); }
};

int run(bool describe) {
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);  // read when the device is first used
  try {
    const auto device = open_cuda(0);
    std::puts(device->backend().description().c_str());
    if (describe) return 0;
    static ManagedMemory memory;  // outlives tensors that tests keep
    static Allocator allocator(memory);
    const AllocatorScope allocations(allocator);
    const BackendScope kernels(device->backend());
    return RUN_ALL_TESTS();
  } catch (const Error& e) {
    std::puts(e.what());
    return describe ? static_cast<int>(Exit::config) : 77;
  }
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  // Their StepScalars lie on the host's stack, which a GPU cannot read.
  GTEST_FLAG_SET(filter, "-*ropout*:*AdamW*:*SkippedSteps*:*TokensAndLoss*");
  testing::InitGoogleTest(&argc, argv);
  return lockstep::run(argc > 1 && std::strcmp(argv[1], "--describe") == 0);
}
