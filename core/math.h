// exp, tanh, sigmoid and erf as branch-free polynomials that the compiler vectorises; a few ulp
// from the exact value (bounds at each function, tested over the whole range). Read next:
// functors.h.
#pragma once

#include <cmath>

#include "core/dtype.h"

namespace lockstep {

// e^x, relative error below 2 ulp; 0 below -87.3 (no denormals), infinity above 88.72, NaN stays
// NaN. Range reduction x = n ln 2 + r, |r| <= ln 2 / 2, and the Taylor polynomial of degree 7 for
// e^r.
LOCKSTEP_HD inline float fast_exp(float x) {
  const float n = std::nearbyint(x * 1.44269504088896f);
  const float r = (x - n * 0.693145751953125f) - n * 1.42860682030941723212e-6f;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // 2^n in two factors, since n may be 128.
  const int m = static_cast<int>(n < -126.0f ? -126.0f : n > 128.0f ? 128.0f : n);
  const int half = m / 2;
  const float s1 = std::bit_cast<float>((half + 127) << 23);
  const float s2 = std::bit_cast<float>((m - half + 127) << 23);
  float y = p * s1 * s2;
  y = x < -87.3f ? 0.0f : y;
  y = x > 88.7228f ? INFINITY : y;
  return x != x ? x : y;
}

// 1 / (1 + e^-x), absolute error below 1e-7.
LOCKSTEP_HD inline float fast_sigmoid(float x) {
  return 1.0f / (1.0f + fast_exp(-x));
}

// tanh(x), relative error below 4 ulp: an odd polynomial near zero, where 1 - 2 / (e^2x + 1)
// cancels.
LOCKSTEP_HD inline float fast_tanh(float x) {
  const float x2 = x * x;
  float p = -0.00886323552990219656886f;
  p = p * x2 + 0.0218694885361552028218f;
  p = p * x2 - 0.0539682539682539682540f;
  p = p * x2 + 0.133333333333333333333f;
  p = p * x2 - 0.333333333333333333333f;
  const float small = x + x * x2 * p;
  const float large = 1.0f - 2.0f / (fast_exp(2.0f * std::fabs(x)) + 1.0f);
  return std::fabs(x) < 0.3f ? small : std::copysign(large, x);
}

// erf(x), absolute error below 1.5e-7: 1 - e^q(|x|), where q fits ln(erfc(t)) on [0, 4] so that the
// greatest error of erf is least (1.6e-8 before rounding); beyond 4 erf rounds to 1.
LOCKSTEP_HD inline float fast_erf(float x) {
  const float t = std::fabs(x) > 4.0f ? 4.0f : std::fabs(x);
  float q = -3.143200738e-5f;
  q = q * t + 3.087371312e-4f;
  q = q * t - 1.03220127e-3f;
  q = q * t - 5.372359268e-4f;
  q = q * t + 1.9584195e-2f;
  q = q * t - 1.029197027e-1f;
  q = q * t - 6.36597719e-1f;
  q = q * t - 1.128380252f;
  return std::copysign(1.0f - fast_exp(q * t), x);
}

}  // namespace lockstep
