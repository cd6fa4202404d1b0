// Runs tests of core/ on the CUDA kernels: the ops of this thread go to CudaBackend. The thread
// order is random, by the seed in CUDA_ON_CPU_SEED if it is set.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "core/cuda/cuda_backend.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  cuda_on_cpu::options.order = cuda_on_cpu::Order::random;
  if (const char* seed = std::getenv("CUDA_ON_CPU_SEED"))
    cuda_on_cpu::options.seed = std::strtoull(seed, nullptr, 10);
  lockstep::CudaBackend backend(nullptr);
  const lockstep::BackendScope scope(backend);
  return RUN_ALL_TESTS();
}
