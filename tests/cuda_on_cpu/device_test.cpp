// The module's entry on the pretended device: its memory, and what is said without one.
#include <cuda_runtime.h>

#include "core/cuda/open.h"
#include "tests/core/expect_error.h"
#include "tests/core/kernel_data.h"

extern "C" lockstep::CudaDevice* lockstep_open_cuda(int index);

namespace lockstep {
namespace {

using namespace test;

class CudaOnCpuDevice : public ::testing::Test {
 protected:
  ~CudaOnCpuDevice() override { cuda_on_cpu::device = {}; }
};

TEST_F(CudaOnCpuDevice, ComputesInItsOwnMemory) {
  const std::unique_ptr<CudaDevice> device(lockstep_open_cuda(0));
  EXPECT_EQ(device->description(), "Fibers, 1.5 GiB, sm_90");
  EXPECT_STREQ(device->backend().name(), "cuda");
  const std::vector<float> host{1, 2, 3, -4};
  std::vector<float> result(4);
  Allocator memory(device->memory());
  {
    const AllocatorScope allocator(memory);
    const CategoryScope category(Category::parameters);
    Tensor x = Tensor::empty({4}), y = Tensor::empty({4});
    EXPECT_TRUE(std::isnan(x.data<float>()[0]));  // nothing is zero by luck
    device->copy(x.raw(), host.data(), x.bytes());
    device->backend().unary(Square(), x, y);
    device->copy(result.data(), y.raw(), y.bytes());
    device->synchronize();
    EXPECT_EQ(memory.stats().current[static_cast<int>(Category::parameters)], 32);
  }
  EXPECT_EQ(result, (std::vector<float>{1, 4, 9, 16}));
}

TEST_F(CudaOnCpuDevice, OutOfMemoryNamesBytesCategoryAndRemedy) {
  const std::unique_ptr<CudaDevice> device(lockstep_open_cuda(0));
  Allocator memory(device->memory());
  const auto held = memory.allocate(1024, Category::gradients);
  cuda_on_cpu::device.free_bytes = 1 << 20;
  EXPECT_ERROR(memory.allocate(size_t{1} << 21, Category::optimizer), Exit::config,
               "[memory] the GPU refused 2097152 bytes; a smaller train.micro_batch, "
               "train.recompute or a higher dist.zero_stage needs less (asked for optimizer; in "
               "use: parameters 0, gradients 1024, optimizer 0, activations 0, buffers 0, held "
               "1024 bytes)");
}

TEST_F(CudaOnCpuDevice, WithoutADeviceOneLineSaysWhy) {
  EXPECT_ERROR(lockstep_open_cuda(1), Exit::config,
               "no CUDA device 1: 1 visible, counted from 0; fewer ranks on this host are right");
  cuda_on_cpu::device.count = 0;
  EXPECT_ERROR(lockstep_open_cuda(0), Exit::config,
               "no CUDA device: none is visible; use device: cpu");
  cuda_on_cpu::device.driver = 0;
  EXPECT_ERROR(lockstep_open_cuda(0), Exit::config,
               "no CUDA device: driver not found; use device: cpu");
}

TEST_F(CudaOnCpuDevice, HeadsBeyondTheLimitAreRefused) {
  const std::unique_ptr<CudaDevice> device(lockstep_open_cuda(0));
  const Heads heads{1, 1, 264};
  const Tensor qkv = random_tensor({1, 2, heads.packed()}, DType::f32, 1);
  Tensor o = Tensor::empty({1, 2, 264}), lse = Tensor::empty({1, 1, 2}), dpre = o;
  EXPECT_ERROR(device->backend().attention(qkv, heads, o, lse), Exit::internal,
               "[attention] head_dim 264; at most 256 is right for device cuda");
  EXPECT_ERROR(device->backend().gelu_bias_grad(Relu(), o, o, dpre, nullptr, false), Exit::internal,
               "[gelu_bias_grad] functor 6 of Unary; one of the two GELUs is right");
}

}  // namespace
}  // namespace lockstep
