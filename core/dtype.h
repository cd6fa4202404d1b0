// Element types, and the one 16-bit float of this project: bf16, the upper half of an fp32.
// Arithmetic is always done in fp32; bf16 is a way to store. Read next: allocator.h.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

// Marks what CPU loops and CUDA kernels share.
#ifdef __CUDACC__
#define LOCKSTEP_HD __host__ __device__
#else
#define LOCKSTEP_HD
#endif

namespace lockstep {

enum class DType : uint8_t { f32, bf16, i32, u8, f64 };

constexpr bool is_floating(DType t) {
  return t == DType::f32 || t == DType::bf16 || t == DType::f64;
}

constexpr size_t size_of(DType t) {
  switch (t) {
    case DType::f32:
      return 4;
    case DType::bf16:
      return 2;
    case DType::i32:
      return 4;
    case DType::u8:
      return 1;
    case DType::f64:
      return 8;
  }
  return 0;
}

constexpr const char* name_of(DType t) {
  switch (t) {
    case DType::f32:
      return "f32";
    case DType::bf16:
      return "bf16";
    case DType::i32:
      return "i32";
    case DType::u8:
      return "u8";
    case DType::f64:
      return "f64";
  }
  return "?";
}

struct bf16 {
  uint16_t bits;
};

LOCKSTEP_HD inline float to_float(float x) {
  return x;
}
LOCKSTEP_HD inline float to_float(bf16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

// Round to nearest even; NaN stays NaN (the rounding carry could turn its payload into infinity).
LOCKSTEP_HD inline bf16 to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const uint32_t quiet = (u >> 16) | 0x40u;
  return {static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded)};
}

template <class T>
LOCKSTEP_HD T from_float(float x);
template <>
LOCKSTEP_HD inline float from_float<float>(float x) {
  return x;
}
template <>
LOCKSTEP_HD inline bf16 from_float<bf16>(float x) {
  return to_bf16(x);
}

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<bf16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::i32;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::u8;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::f64;
}

}  // namespace lockstep
