// exp, tanh, sigmoid and erf as branch-free polynomials that the compiler vectorises; bounds on
// their errors stand at each function and are tested over the whole range. The coefficients are our
// own: minimax fits (Remez' algorithm in 40 digits) to what remains after the exact leading terms.
// Read next: functors.h.
#pragma once

#include <cmath>

#include "core/dtype.h"

namespace lockstep {

// e^x, relative error below 2 ulp; 0 below -86.9 (no denormals), infinity above 88.72, NaN stays
// NaN. x = n ln 2 + r with |r| <= ln 2 / 2, and 2 e^r is a polynomial of degree 6. Adding 1.5 *
// 2^23 rounds to an integer and leaves it in the low bits; 2^(n - 1) is built from them, because
// 2^128 would not be a float.
LOCKSTEP_HD inline float fast_exp(float x) {
  constexpr float round = 12582912.0f, ln2_high = 0.693145751953125f, ln2_low = 1.428606820e-6f;
  const float shifted = x * 1.44269504088896f + round;
  const float n = shifted - round;
  const float r = (x - n * ln2_high) - n * ln2_low;
  float p = 0.002789976172f;
  p = p * r + 0.01673723834f;
  p = p * r + 0.08333243584f;
  p = p * r + 0.3333304346f;
  p = p * r + 1.0f;
  p = p * r + 2.0f;
  p = p * r + 2.0f;
  const uint32_t exponent = (std::bit_cast<uint32_t>(shifted) << 23) + (126u << 23);
  const float y = p * std::bit_cast<float>(exponent);
  return x < -86.9f ? 0.0f : x > 88.7228f ? INFINITY : y;
}

// 1 / (1 + e^-x), relative error below 4 ulp; 0 below -88.72.
LOCKSTEP_HD inline float fast_sigmoid(float x) {
  return 1.0f / (1.0f + fast_exp(-x));
}

// tanh(x), relative error below 4 ulp: an odd polynomial near zero, where 1 - 2 / (e^2x + 1)
// cancels.
LOCKSTEP_HD inline float fast_tanh(float x) {
  const float z = x * x;
  float p = 0.002253467558f;
  p = p * z - 0.008291983897f;
  p = p * z + 0.02174486231f;
  p = p * z - 0.0539544953f;
  p = p * z + 0.1333326542f;
  p = p * z - 0.3333333231f;
  const float small = x + x * (z * p);
  const float large = 1.0f - 2.0f / (fast_exp(2.0f * std::fabs(x)) + 1.0f);
  return std::fabs(x) < 0.6f ? small : std::copysign(large, x);
}

// erf(x), relative error below 4 ulp: an odd polynomial below 1, and 1 - e^-g(|x|) with a
// polynomial g above, up to 4, from where erf is 1 in fp32.
LOCKSTEP_HD inline float fast_erf(float x) {
  const float z = x * x;
  float p = 7.853860784e-5f;
  p = p * z - 0.0008010193446f;
  p = p * z + 0.005188327665f;
  p = p * z - 0.02685381192f;
  p = p * z + 0.1128358515f;
  p = p * z - 0.3761262582f;
  p = p * z + 1.128379166f;
  const float t = std::fabs(x) > 4.0f ? 4.0f : std::fabs(x);
  float g = -0.0001863789678f;
  g = g * t + 0.002947656227f;
  g = g * t - 0.02183805618f;
  g = g * t + 0.1031067391f;
  g = g * t + 0.6381448496f;
  g = g * t + 1.127089181f;
  g = g * t + 0.000341525244f;
  const float large = 1.0f - fast_exp(-g);
  return std::fabs(x) < 1.0f ? x * p : std::copysign(large, x);
}

}  // namespace lockstep
