// Codec `int8`: each cell has a scale, its largest magnitude / 127, and each element is rounded to
// the nearest multiple of it, ties to even. An element and its multiple are within a factor of two
// of each other, or the multiple is zero: so the rest is exact (Sterbenz' lemma).
#pragma once

#include <cmath>

#include "core/codecs/cell.h"

namespace lockstep::codec {

// The scale, then an int8 per element.
struct Int8 {
  static constexpr const char *name = "int8",
                              *help =
                                  "rounded to 255 steps between the extremes of a cell: a quarter";
  static constexpr bool lossless = false;
  using Local = Nothing;

  explicit Int8(const CodecOptions&) {}
  LOCKSTEP_HD size_t bytes(int64_t n) const { return sizeof(float) + n; }

  template <class Team>
  LOCKSTEP_TEAM void pack(const Team& team, const float* x, int64_t n, std::byte* wire,
                          Local&) const {
    const uint32_t largest = team.largest(n, [=](int64_t i) { return magnitude_bits(x[i]); });
    const float scale = std::bit_cast<float>(largest) / 127.0f;
    int8_t* steps = reinterpret_cast<int8_t*>(wire + sizeof scale);
    team.each(1, [=](int64_t) { *reinterpret_cast<float*>(wire) = scale; });
    // Zero, or too coarse to divide by: all elements wait. Not finite: zero times it is NaN.
    const uint32_t exponent = bits_of(scale) >> 23;
    if (exponent == 0 || exponent == 255)
      team.each(n, [=](int64_t i) { steps[i] = 0; });
    else
      team.each(n, [=](int64_t i) {
        steps[i] = static_cast<int8_t>(static_cast<int32_t>(nearbyintf(x[i] / scale)));
      });
  }

  template <class Team>
  LOCKSTEP_TEAM void unpack(const Team& team, const std::byte* wire, int64_t n, float* out) const {
    const float scale = *reinterpret_cast<const float*>(wire);
    const int8_t* steps = reinterpret_cast<const int8_t*>(wire + sizeof scale);
    team.each(n, [=](int64_t i) { out[i] = static_cast<float>(steps[i]) * scale; });
  }
};

}  // namespace lockstep::codec
