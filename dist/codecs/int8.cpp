// Codec `int8`: each cell has a scale, its largest magnitude / 127, and each element is rounded to
// the nearest multiple of it, ties to even. An element and its multiple are within a factor of two
// of each other, or the multiple is zero: so the rest is exact (Sterbenz' lemma).
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "dist/codec.h"

namespace lockstep {

namespace {

// By bits: magnitudes are ordered like the integers they are, with infinity and NaN above all.
float largest_magnitude(const float* x, int64_t n) {
  uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; ++i)
    largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  return std::bit_cast<float>(largest);
}

// The scale, then an int8 per element.
class Int8 final : public CellCodec {
 public:
  bool lossless() const override { return false; }

 private:
  size_t cell_bytes(int64_t n) const override { return sizeof(float) + n; }

  void pack(const float* x, int64_t n, std::byte* wire) const override {
    const float scale = largest_magnitude(x, n) / 127.0f;
    std::memcpy(wire, &scale, sizeof scale);
    int8_t* steps = reinterpret_cast<int8_t*>(wire + sizeof scale);
    // Zero, or too coarse to divide by: all elements wait. Not finite: zero times it is NaN.
    if (!std::isnormal(scale)) {
      std::memset(steps, 0, n);
      return;
    }
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i)
      steps[i] = static_cast<int8_t>(static_cast<int32_t>(std::nearbyint(x[i] / scale)));
  }

  void unpack(const std::byte* wire, int64_t n, float* out) const override {
    float scale;
    std::memcpy(&scale, wire, sizeof scale);
    const int8_t* steps = reinterpret_cast<const int8_t*>(wire + sizeof scale);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(steps[i]) * scale;
  }
};

}  // namespace

std::unique_ptr<Codec> make_int8(const CodecOptions&) {
  return std::make_unique<Int8>();
}

}  // namespace lockstep
