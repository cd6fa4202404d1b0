// Inputs and comparisons for kernel tests: pseudo-random tensors, their values as doubles, and
// error bounds derived from the unit roundoff of the type that was written.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "core/backend.h"
#include "core/parallel.h"

namespace lockstep::test {

inline double unit_roundoff(DType t) {
  return t == DType::bf16 ? 0x1p-8 : 0x1p-24;
}

inline Tensor random_tensor(Shape shape, DType dtype, uint32_t seed, float scale = 1.0f) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> uniform(-scale, scale);
  Tensor t = Tensor::empty(std::move(shape), dtype);
  for (int64_t i = 0; i < t.numel(); ++i) {
    const float x = uniform(engine);
    if (dtype == DType::bf16)
      t.data<bf16>()[i] = to_bf16(x);
    else
      t.data<float>()[i] = x;
  }
  return t;
}

inline std::vector<double> values(const Tensor& t) {
  std::vector<double> result;
  if (t.dtype() == DType::bf16)
    for (bf16 x : t.to_vector<bf16>()) result.push_back(to_float(x));
  else if (t.dtype() == DType::f64)
    result = t.to_vector<double>();
  else
    for (float x : t.to_vector<float>()) result.push_back(x);
  return result;
}

// |got - want| <= bound for every element; `bound` may grow with the element.
template <class Bound>
void expect_near(const Tensor& got, const std::vector<double>& want, Bound&& bound,
                 const std::string& what) {
  const std::vector<double> have = values(got);
  ASSERT_EQ(have.size(), want.size()) << what;
  for (size_t i = 0; i < have.size(); ++i)
    ASSERT_LE(std::fabs(have[i] - want[i]), bound(i))
        << what << ": element " << i << " is " << have[i] << ", should be " << want[i];
}

inline std::vector<uint8_t> bytes(const Tensor& t) {
  const auto* p = static_cast<const uint8_t*>(t.raw());
  return {p, p + t.bytes()};
}

// The bits of what `kernel` returns must be the same with one, two and three threads.
template <class Kernel>
void expect_thread_independent(Kernel&& kernel, const std::string& what) {
  const int before = num_threads();
  std::vector<std::vector<uint8_t>> reference;
  for (int threads : {1, 2, 3}) {
    set_num_threads(threads);
    std::vector<std::vector<uint8_t>> result;
    for (const Tensor& t : kernel()) result.push_back(bytes(t));
    if (threads == 1)
      reference = result;
    else
      EXPECT_EQ(result, reference) << what << " with " << threads << " threads";
  }
  set_num_threads(before);
}

}  // namespace lockstep::test
