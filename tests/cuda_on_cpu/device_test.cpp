// The module's entry on the pretended device: its memory, and what is said without one.
#include <cuda_runtime.h>

#include <cmath>

#include "core/cuda/open.h"
#include "tests/core/expect_error.h"
#include "tests/core/kernel_data.h"

extern "C" lockstep::Device* lockstep_open_cuda(int index, lockstep::Fp32Products products);
extern "C" void lockstep_cuda_uuids(std::vector<std::string>& uuids);

namespace lockstep {
namespace {

using namespace test;

Device* open(int index, Fp32Products products = Fp32Products::exact) {
  return lockstep_open_cuda(index, products);
}

class CudaOnCpuDevice : public ::testing::Test {
 protected:
  ~CudaOnCpuDevice() override {
    cuda_on_cpu::device = {};
    cuda_on_cpu::streams = {};
  }
};

TEST_F(CudaOnCpuDevice, ComputesInItsOwnMemory) {
  const std::unique_ptr<Device> device(open(0));
  EXPECT_EQ(device->backend().description(), "Fibers, 1.5 GiB, sm_90");
  EXPECT_STREQ(device->backend().name(), "cuda");
  const std::vector<float> host{1, 2, 3, -4};
  std::vector<float> result(4);
  Allocator memory(device->memory());
  {
    const AllocatorScope allocator(memory);
    const CategoryScope category(Category::parameters);
    Tensor x = Tensor::empty({4}), y = Tensor::empty({4});
    EXPECT_TRUE(std::isnan(x.data<float>()[0]));  // nothing is zero by luck
    x.copy_from_host(host.data());
    device->backend().unary(Square(), x, y);
    y.copy_to_host(result.data());
    EXPECT_EQ(memory.stats().current[static_cast<int>(Category::parameters)], 32);
  }
  EXPECT_EQ(result, (std::vector<float>{1, 4, 9, 16}));
}

TEST_F(CudaOnCpuDevice, OutOfMemoryNamesBytesCategoryAndRemedy) {
  const std::unique_ptr<Device> device(open(0));
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
  EXPECT_ERROR(open(1), Exit::config,
               "no CUDA device 1: 1 visible, counted from 0; fewer ranks on this host are right");
  cuda_on_cpu::device.count = 0;
  EXPECT_ERROR(open(0), Exit::config, "no CUDA device: none is visible; use device: cpu");
  cuda_on_cpu::device.driver = 0;
  EXPECT_ERROR(open(0), Exit::config, "no CUDA device: driver not found; use device: cpu");
}

TEST_F(CudaOnCpuDevice, SaysWhoComputesAttention) {
  const std::unique_ptr<Device> device(open(0));
  const auto use = [&](const char* wanted, DType type, int64_t head_dim) {
    return device->backend().use_attention(wanted, {12, 12, head_dim}, type, 8, 1024);
  };
  EXPECT_EQ(use("own", DType::bf16, 64), "own kernels on tensor cores (asked for)");
  EXPECT_EQ(use("auto", DType::bf16, 64), "own kernels on tensor cores (built without cuDNN)");
  EXPECT_EQ(use("auto", DType::bf16, 160), "own kernels on plain cores (built without cuDNN)");
  EXPECT_EQ(use("auto", DType::f32, 64),
            "own kernels on plain cores (cuDNN's attention is for bf16)");
  EXPECT_ERROR(use("cudnn", DType::bf16, 64), Exit::config,
               "[train.attention] cudnn: built without cuDNN; use auto or own");
}

TEST_F(CudaOnCpuDevice, HeadsBeyondTheLimitAreRefused) {
  const std::unique_ptr<Device> device(open(0));
  const Heads heads{1, 1, 264};
  const Tensor qkv = random_tensor({1, 2, heads.packed()}, DType::f32, 1);
  Tensor o = Tensor::empty({1, 2, 264}), lse = Tensor::empty({1, 1, 2}), dpre = o;
  EXPECT_ERROR(device->backend().attention(qkv, heads, o, lse), Exit::internal,
               "[attention] head_dim 264; at most 256 is right for device cuda");
  EXPECT_ERROR(device->backend().gelu_bias_grad(Relu(), o, o, dpre, nullptr, false), Exit::internal,
               "[gelu_bias_grad] functor 6 of Unary; one of the two GELUs is right");
}

// 1 + 2^-11 has one bit of fraction more than TF32 keeps: it becomes 1 + 2^-10 there, and stays
// what it is where fp32 was asked for. bf16 is not concerned.
TEST_F(CudaOnCpuDevice, Tf32RoundsFactorsWhereItWasAskedForAndNowhereElse) {
  const auto product = [](Fp32Products products, DType type) {
    const std::unique_ptr<Device> device(open(0, products));
    const std::unique_ptr<Lane> other = device->open_lane();
    Tensor a = Tensor::empty({8, 8}, type), b = Tensor::empty({8, 8}, type);
    cpu_backend().fill(a, 1 + 0x1p-11f);
    cpu_backend().fill(b, 1.0f);
    Tensor out = Tensor::empty({8, 8}), again = Tensor::empty({8, 8});
    device->backend().gemm(a, b, out, {});
    other->backend().gemm(a, b, again, {});
    EXPECT_EQ(out.to_vector<float>(), again.to_vector<float>());
    return out.to_vector<float>()[0];
  };
  EXPECT_EQ(product(Fp32Products::exact, DType::f32), 8 + 8 * 0x1p-11f);
  EXPECT_EQ(product(Fp32Products::tf32, DType::f32), 8 + 8 * 0x1p-10f);
  EXPECT_EQ(product(Fp32Products::tf32, DType::bf16), product(Fp32Products::exact, DType::bf16));
}

// Values reach the kernels that are queued after them, in every order in which the device runs.
TEST_F(CudaOnCpuDevice, WhatTheHostWritesTakesItsTurn) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    cuda_on_cpu::streams = {.queued = true, .seed = seed, .without = {}};
    const std::unique_ptr<Device> device(open(0));
    const std::unique_ptr<Lane> other = device->open_lane();
    Allocator memory(device->memory());
    const AllocatorScope allocator(memory);
    const BackendScope kernels(device->backend());
    Tensor x = Tensor::zeros({4}), sum = Tensor::zeros({4});
    for (int i = 1; i <= 10; ++i) {
      const std::vector<float> values(4, static_cast<float>(i));
      x.copy_from_host(values.data());
      other->backend().stream().wait(backend().stream().record());
      other->backend().add(x.data<float>(), sum.data<float>(), 4);
      backend().stream().wait(other->backend().stream().record());
    }
    EXPECT_EQ(sum.to_vector<float>(), std::vector<float>(4, 55.0f)) << seed;
  }
}

// What is read into pinned memory is there when an event says so, however late the stream is.
TEST_F(CudaOnCpuDevice, PinsMemoryOfTheHostAndReadsIntoIt) {
  alignas(4096) static std::byte pages[2 * 4096];
  const std::span<std::byte> memory(pages);
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    cuda_on_cpu::streams = {.queued = true, .seed = seed, .without = {}};
    const std::unique_ptr<Device> device(open(0));
    const std::shared_ptr<void> pin = device->pin(memory);
    Allocator allocator(device->memory());
    const AllocatorScope scope(allocator);
    const BackendScope kernels(device->backend());
    Tensor x = Tensor::empty({1000});
    backend().fill(x, static_cast<float>(seed));
    device->read(pages, x.raw(), x.bytes());
    backend().fill(x, 0.0f);
    backend().stream().synchronize();
    EXPECT_EQ(reinterpret_cast<const float*>(pages)[999], static_cast<float>(seed));
  }
  const std::unique_ptr<Device> device(open(0));
  const std::string refused =
      "[memory] CUDA cannot pin 4096 bytes of the host's memory: {}; a smaller dist.bucket_mb "
      "needs less";
  {
    const std::shared_ptr<void> pin = device->pin(memory.first(5000));
    EXPECT_ERROR(device->pin(memory.last(4096)), Exit::config,
                 fmt::format(fmt::runtime(refused),
                             "part or all of the requested memory range is already mapped"));
  }
  device->pin(memory.last(4096));
  cuda_on_cpu::device.pinnable_bytes = 4095;
  EXPECT_ERROR(device->pin(memory.last(4096)), Exit::config,
               fmt::format(fmt::runtime(refused), "out of memory"));
}

TEST_F(CudaOnCpuDevice, EveryDeviceHasItsName) {
  cuda_on_cpu::device.count = 2;
  std::vector<std::string> uuids;
  lockstep_cuda_uuids(uuids);
  EXPECT_EQ(uuids,
            (std::vector<std::string>{"01" + std::string(30, '0'), "02" + std::string(30, '0')}));
}

}  // namespace
}  // namespace lockstep
