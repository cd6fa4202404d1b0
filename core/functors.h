// Elementwise functions: formula and derivative, written once, for CPU loops and CUDA kernels
// alike. To add one: a struct here, its name in the list below, one line in ops/elementwise.h.
// Approximations come from math.h. Read next: ops/elementwise.cpp.
#pragma once

#include <variant>

#include "core/math.h"

namespace lockstep {

// Unary: y = f(x); grad(x, y) is dy/dx (use whichever of the two is cheaper).
struct Neg {
  LOCKSTEP_HD float operator()(float x) const { return -x; }
  LOCKSTEP_HD float grad(float, float) const { return -1.0f; }
};
struct Scale {
  float factor;
  LOCKSTEP_HD float operator()(float x) const { return factor * x; }
  LOCKSTEP_HD float grad(float, float) const { return factor; }
};
struct Exp {
  LOCKSTEP_HD float operator()(float x) const { return fast_exp(x); }
  LOCKSTEP_HD float grad(float, float y) const { return y; }
};
struct Log {
  LOCKSTEP_HD float operator()(float x) const { return std::log(x); }
  LOCKSTEP_HD float grad(float x, float) const { return 1.0f / x; }
};
struct Sqrt {
  LOCKSTEP_HD float operator()(float x) const { return std::sqrt(x); }
  LOCKSTEP_HD float grad(float, float y) const { return 0.5f / y; }
};
struct Square {
  LOCKSTEP_HD float operator()(float x) const { return x * x; }
  LOCKSTEP_HD float grad(float x, float) const { return 2.0f * x; }
};
struct Relu {
  LOCKSTEP_HD float operator()(float x) const { return x > 0.0f ? x : 0.0f; }
  LOCKSTEP_HD float grad(float x, float) const { return x > 0.0f ? 1.0f : 0.0f; }
};
struct Tanh {
  LOCKSTEP_HD float operator()(float x) const { return fast_tanh(x); }
  LOCKSTEP_HD float grad(float, float y) const { return 1.0f - y * y; }
};
struct Sigmoid {
  LOCKSTEP_HD float operator()(float x) const { return fast_sigmoid(x); }
  LOCKSTEP_HD float grad(float, float y) const { return y * (1.0f - y); }
};
struct Silu {
  LOCKSTEP_HD float operator()(float x) const { return x * fast_sigmoid(x); }
  LOCKSTEP_HD float grad(float x, float) const {
    const float s = fast_sigmoid(x);
    return s * (1.0f + x * (1.0f - s));
  }
};
// GPT-2's GELU: 0.5 x (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3) (Hendrycks and Gimpel, 2016),
// computed as x sigmoid(2u), which is the same and loses no digits where tanh is near -1.
struct GeluTanh {
  static constexpr float c2 = 2.0f * 0.7978845608f, a = 0.044715f;
  LOCKSTEP_HD float operator()(float x) const {
    return x * fast_sigmoid(c2 * x * (1.0f + a * x * x));
  }
  LOCKSTEP_HD float grad(float x, float) const {
    const float s = fast_sigmoid(c2 * x * (1.0f + a * x * x));
    return s + x * s * (1.0f - s) * c2 * (1.0f + 3.0f * a * x * x);
  }
};
// The exact GELU: x Phi(x).
struct GeluErf {
  LOCKSTEP_HD float operator()(float x) const {
    return 0.5f * x * (1.0f + fast_erf(x * 0.7071067812f));
  }
  LOCKSTEP_HD float grad(float x, float) const {
    return 0.5f * (1.0f + fast_erf(x * 0.7071067812f)) +
           x * 0.3989422804f * fast_exp(-0.5f * x * x);
  }
};
using Unary =
    std::variant<Neg, Scale, Exp, Log, Sqrt, Square, Relu, Tanh, Sigmoid, Silu, GeluTanh, GeluErf>;

// Binary: y = f(a, b); grad_a and grad_b are the partial derivatives.
struct Add {
  LOCKSTEP_HD float operator()(float a, float b) const { return a + b; }
  LOCKSTEP_HD float grad_a(float, float) const { return 1.0f; }
  LOCKSTEP_HD float grad_b(float, float) const { return 1.0f; }
};
struct Sub {
  LOCKSTEP_HD float operator()(float a, float b) const { return a - b; }
  LOCKSTEP_HD float grad_a(float, float) const { return 1.0f; }
  LOCKSTEP_HD float grad_b(float, float) const { return -1.0f; }
};
struct Mul {
  LOCKSTEP_HD float operator()(float a, float b) const { return a * b; }
  LOCKSTEP_HD float grad_a(float, float b) const { return b; }
  LOCKSTEP_HD float grad_b(float a, float) const { return a; }
};
struct Div {
  LOCKSTEP_HD float operator()(float a, float b) const { return a / b; }
  LOCKSTEP_HD float grad_a(float, float b) const { return 1.0f / b; }
  LOCKSTEP_HD float grad_b(float a, float b) const { return -a / (b * b); }
};
struct Equal {
  LOCKSTEP_HD float operator()(float a, float b) const { return a == b ? 1.0f : 0.0f; }
  LOCKSTEP_HD float grad_a(float, float) const { return 0.0f; }
  LOCKSTEP_HD float grad_b(float, float) const { return 0.0f; }
};
using Binary = std::variant<Add, Sub, Mul, Div, Equal>;

}  // namespace lockstep
