// Codec `bf16`: every element rounded to the nearest bf16, ties to even; half the bytes. The rest
// is exact: the 16 bits that were rounded away. Elements above 3.39e38 become infinite.
#pragma once

#include "core/codecs/cell.h"

namespace lockstep::codec {

struct Bf16 {
  static constexpr const char *name = "bf16", *help = "rounded to bf16: half the bytes";
  static constexpr bool lossless = false;
  using Local = Nothing;

  explicit Bf16(const CodecOptions&) {}
  LOCKSTEP_HD size_t bytes(int64_t n) const { return n * sizeof(bf16); }

  template <class Team>
  LOCKSTEP_TEAM void pack(const Team& team, const float* x, int64_t n, std::byte* wire,
                          Local&) const {
    bf16* narrow = reinterpret_cast<bf16*>(wire);
    team.each(n, [=](int64_t i) { narrow[i] = to_bf16(x[i]); });
  }

  template <class Team>
  LOCKSTEP_TEAM void unpack(const Team& team, const std::byte* wire, int64_t n, float* out) const {
    const bf16* narrow = reinterpret_cast<const bf16*>(wire);
    team.each(n, [=](int64_t i) { out[i] = to_float(narrow[i]); });
  }
};

}  // namespace lockstep::codec
