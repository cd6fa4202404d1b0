// Elementwise ops: one line each over the functors of core/functors.h. fp32 or bf16 (both inputs
// alike), any strides; the result is contiguous. Adding one: a functor there, a line here, a row in
// tests/core/ops_test.cpp. Read next: elementwise.cpp.
#pragma once

#include "core/functors.h"
#include "core/tensor.h"

namespace lockstep {

// y = f(x). `op` names it in messages.
Tensor unary(const char* op, const Unary& f, const Tensor& x);
// y = f(a, b), sizes equal or 1 and aligned at the right (broadcasting); an input's gradient is
// summed where the input was repeated.
Tensor binary(const char* op, const Binary& f, const Tensor& a, const Tensor& b);

// How gelu is computed: GPT-2's approximation, or exactly.
enum class GeluKind { tanh, erf };
inline Unary gelu_functor(GeluKind kind) {
  return kind == GeluKind::tanh ? Unary(GeluTanh{}) : Unary(GeluErf{});
}

// clang-format off
inline Tensor neg(const Tensor& x) { return unary("neg", Neg{}, x); }
inline Tensor scale(const Tensor& x, float factor) { return unary("scale", Scale{factor}, x); }
inline Tensor exp(const Tensor& x) { return unary("exp", Exp{}, x); }
inline Tensor log(const Tensor& x) { return unary("log", Log{}, x); }
inline Tensor sqrt(const Tensor& x) { return unary("sqrt", Sqrt{}, x); }
inline Tensor square(const Tensor& x) { return unary("square", Square{}, x); }
inline Tensor relu(const Tensor& x) { return unary("relu", Relu{}, x); }
inline Tensor tanh(const Tensor& x) { return unary("tanh", Tanh{}, x); }
inline Tensor sigmoid(const Tensor& x) { return unary("sigmoid", Sigmoid{}, x); }
inline Tensor silu(const Tensor& x) { return unary("silu", Silu{}, x); }
inline Tensor gelu(const Tensor& x, GeluKind kind) { return unary("gelu", gelu_functor(kind), x); }

inline Tensor add(const Tensor& a, const Tensor& b) { return binary("add", Add{}, a, b); }
inline Tensor sub(const Tensor& a, const Tensor& b) { return binary("sub", Sub{}, a, b); }
inline Tensor mul(const Tensor& a, const Tensor& b) { return binary("mul", Mul{}, a, b); }
inline Tensor div(const Tensor& a, const Tensor& b) { return binary("div", Div{}, a, b); }
// 1 where a == b, else 0; no gradient flows through it.
inline Tensor equal(const Tensor& a, const Tensor& b) { return binary("equal", Equal{}, a, b); }
// clang-format on

}  // namespace lockstep
