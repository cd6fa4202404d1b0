// A kernel on the GPU's twin against the CPU backend, run as fibers in five thread orders. Bounds:
// both sides round n times (`roundings`, per kernel), so they differ by at most 2 n u of the
// magnitudes involved, and by one rounding of what is stored. Read next: kernels_test.cpp.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/cuda/cuda_backend.h"
#include "tests/core/kernel_data.h"
#include "tests/cuda_on_cpu/orders.h"

namespace lockstep {

using Tensors = std::vector<Tensor>;

// All outputs of `kernel` on the GPU's twin, in every order: near the CPU's, and the same bits in
// each order. `roundings` is how many fp32 roundings an element of size `size` went through.
inline void compare(const std::function<Tensors(Backend&)>& kernel, double roundings, double size,
                    const std::string& what) {
  const Tensors want = kernel(cpu_backend());
  CudaBackend gpu(nullptr);
  std::vector<std::vector<uint8_t>> first;
  for_each_order([&](int order) {
    const Tensors got = kernel(gpu);
    ASSERT_EQ(got.size(), want.size()) << what;
    for (size_t k = 0; k < got.size(); ++k) {
      const std::string which = fmt::format("{}, output {}, order {}", what, k, order);
      if (order == 0) {
        const std::vector<double> expected = test::values(want[k]);
        test::expect_near(
            got[k], expected,
            [&](size_t i) {
              return 2 * roundings * 0x1p-24 * (size + std::fabs(expected[i])) +
                     2 * test::unit_roundoff(got[k].dtype()) * std::fabs(expected[i]);
            },
            which);
        first.push_back(test::bytes(got[k]));
      } else {
        ASSERT_EQ(test::bytes(got[k]), first[k]) << which;
      }
    }
  });
}

// In fp32 and bf16, instantiated in kernels_test.cpp.
class CudaKernels : public ::testing::TestWithParam<DType> {
 protected:
  Tensor in(Shape shape, uint32_t seed, float scale = 1.0f) {
    return test::random_tensor(std::move(shape), GetParam(), seed, scale);
  }
  Tensor f32(Shape shape, uint32_t seed) {
    return test::random_tensor(std::move(shape), DType::f32, seed);
  }
  // Sums of bf16 values that are then added to a bf16 number round twice.
  const double stored = GetParam() == DType::bf16 ? 0x1p16 : 0;
};

}  // namespace lockstep
