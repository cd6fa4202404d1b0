// The approximations of core/math.h against double precision, over the whole range of floats, to
// the bounds that math.h states.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "core/functors.h"

namespace lockstep {
namespace {

// Error in units of the last place of the exact value (of the smallest normal below it).
double ulps(float got, double want) {
  const int exponent = std::max(std::ilogb(want == 0 ? 1e-45 : want), -126);
  return std::fabs(got - want) / std::ldexp(1.0, exponent - 23);
}

// Largest error over every 997th float in [low, high], both signs of zero included.
template <class Got, class Want>
double worst(Got got, Want want, float low, float high) {
  double most = 0;
  for (float sign : {-1.0f, 1.0f})
    for (uint32_t bits = 0; bits < 0x7f800000u; bits += 997) {
      const float x = sign * std::bit_cast<float>(bits);
      if (x >= low && x <= high) most = std::max(most, ulps(got(x), want(static_cast<double>(x))));
    }
  return most;
}

constexpr float all = std::numeric_limits<float>::max();
const float infinity = std::numeric_limits<float>::infinity();
const float nan = std::numeric_limits<float>::quiet_NaN();

TEST(KernelsMath, Exp) {
  EXPECT_LT(worst(
                fast_exp, [](double x) { return std::exp(x); }, -86.89f, 88.7228f),
            2.0);
  for (float x : {-87.0f, -88.8f, -1e4f, -all, -infinity}) EXPECT_EQ(fast_exp(x), 0.0f) << x;
  for (float x : {88.73f, 100.0f, 1e9f, all, infinity}) EXPECT_EQ(fast_exp(x), infinity) << x;
  EXPECT_TRUE(std::isnan(fast_exp(nan)));
  EXPECT_EQ(fast_exp(0.0f), 1.0f);
}

TEST(KernelsMath, Tanh) {
  EXPECT_LT(worst(
                fast_tanh, [](double x) { return std::tanh(x); }, -all, all),
            4.0);
  EXPECT_EQ(fast_tanh(infinity), 1.0f);
  EXPECT_EQ(fast_tanh(-infinity), -1.0f);
  EXPECT_TRUE(std::isnan(fast_tanh(nan)));
}

TEST(KernelsMath, Sigmoid) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  EXPECT_LT(worst(fast_sigmoid, sigmoid, -86.0f, all), 4.0);
  EXPECT_EQ(fast_sigmoid(-89.0f), 0.0f);
  EXPECT_EQ(fast_sigmoid(-infinity), 0.0f);
  EXPECT_TRUE(std::isnan(fast_sigmoid(nan)));
}

TEST(KernelsMath, Erf) {
  EXPECT_LT(worst(
                fast_erf, [](double x) { return std::erf(x); }, -all, all),
            4.0);
  EXPECT_EQ(fast_erf(-infinity), -1.0f);
  EXPECT_TRUE(std::isnan(fast_erf(nan)));
}

// A GELU's derivative has zeros, so its error is measured against max(1, |x|) eps.
TEST(KernelsMath, Gelu) {
  const double pi = std::acos(-1.0);
  double tanh_value = 0, tanh_slope = 0, erf_value = 0, erf_slope = 0;
  for (double at = -30; at <= 30; at += 0.00037) {
    const float x = static_cast<float>(at);
    const double v = x, unit = std::max(1.0, std::fabs(v)) * 0x1p-23, c = std::sqrt(2 / pi);
    const double t = std::tanh(c * (v + 0.044715 * v * v * v)),
                 phi = 0.5 * std::erfc(-v / std::sqrt(2.0));
    const double slope = 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * c * (1 + 3 * 0.044715 * v * v);
    const double density = std::exp(-v * v / 2) / std::sqrt(2 * pi);
    tanh_value = std::max(tanh_value, std::fabs(GeluTanh()(x) - 0.5 * v * (1 + t)) / unit);
    tanh_slope = std::max(tanh_slope, std::fabs(GeluTanh().grad(x, 0) - slope) / unit);
    erf_value = std::max(erf_value, std::fabs(GeluErf()(x) - v * phi) / unit);
    erf_slope = std::max(erf_slope, std::fabs(GeluErf().grad(x, 0) - (phi + v * density)) / unit);
  }
  EXPECT_LT(tanh_value, 4.0);
  EXPECT_LT(tanh_slope, 4.0);
  EXPECT_LT(erf_value, 4.0);
  EXPECT_LT(erf_slope, 4.0);
}

}  // namespace
}  // namespace lockstep
