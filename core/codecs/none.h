// Codec `none`: fp32 as it is, for when the network is faster than any codec.
#pragma once

#include "core/codecs/cell.h"

namespace lockstep::codec {

struct None {
  static constexpr const char *name = "none", *help = "fp32 as it is";
  static constexpr bool lossless = true;
  using Local = Nothing;

  explicit None(const CodecOptions&) {}
  LOCKSTEP_HD size_t bytes(int64_t n) const { return n * sizeof(float); }

  template <class Team>
  LOCKSTEP_TEAM void pack(const Team& team, const float* x, int64_t n, std::byte* wire,
                          Local&) const {
    float* same = reinterpret_cast<float*>(wire);
    team.each(n, [=](int64_t i) { same[i] = x[i]; });
  }

  template <class Team>
  LOCKSTEP_TEAM void unpack(const Team& team, const std::byte* wire, int64_t n, float* out) const {
    const float* same = reinterpret_cast<const float*>(wire);
    team.each(n, [=](int64_t i) { out[i] = same[i]; });
  }
};

}  // namespace lockstep::codec
