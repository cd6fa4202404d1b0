// Codec `sign`: one bit per element, and per cell the mean magnitude by which the signs are
// multiplied (scaled signs of EF-signSGD, Karimireddy et al. 2019; 1-bit Adam, Tang et al. 2021,
// sends momenta so). Only error feedback makes it converge. A zero counts as positive.
#pragma once

#include <cmath>

#include "core/codecs/cell.h"

namespace lockstep::codec {

// The mean, then w = ceil(n / 32) words: bit b of word j is the sign of element b w + j. So a
// vector of words, or a warp, meets consecutive elements, and nothing is moved across lanes.
struct Sign {
  static constexpr const char *name = "sign",
                              *help = "one bit per element, times the cell's mean magnitude: 1/31";
  static constexpr bool lossless = false;
  struct Local {
    uint32_t signs[cell_size / 32];
  };

  explicit Sign(const CodecOptions&) {}
  LOCKSTEP_HD static int64_t words(int64_t n) { return (n + 31) / 32; }
  LOCKSTEP_HD size_t bytes(int64_t n) const { return sizeof(float) + words(n) * sizeof(uint32_t); }

  template <class Team>
  LOCKSTEP_TEAM void pack(const Team& team, const float* x, int64_t n, std::byte* wire,
                          Local& local) const {
    const double sum = team.sum(n, [=](int64_t i) {
      return static_cast<double>(std::bit_cast<float>(magnitude_bits(x[i])));
    });
    const float mean = static_cast<float>(sum / static_cast<double>(n));
    team.each(1, [=](int64_t) { *reinterpret_cast<float*>(wire) = mean; });
    // A member has the same words every time, so nobody waits for another.
    uint32_t *signs = local.signs, *out = reinterpret_cast<uint32_t*>(wire + sizeof mean);
    const int64_t w = words(n);
    team.each(w, [=](int64_t j) { signs[j] = 0; });
    for (int bit = 0; bit * w < n; ++bit) {
      const int64_t begin = bit * w;
      team.each(n - begin < w ? n - begin : w,
                [=](int64_t j) { signs[j] |= bits_of(x[begin + j]) >> 31 << bit; });
    }
    team.each(w, [=](int64_t j) { out[j] = signs[j]; });
  }

  template <class Team>
  LOCKSTEP_TEAM void unpack(const Team& team, const std::byte* wire, int64_t n, float* out) const {
    const uint32_t mean = *reinterpret_cast<const uint32_t*>(wire);  // its bits: not negative
    const uint32_t* signs = reinterpret_cast<const uint32_t*>(wire + sizeof mean);
    const int64_t w = words(n);
    for (int bit = 0; bit * w < n; ++bit) {
      const int64_t begin = bit * w;
      team.each(n - begin < w ? n - begin : w, [=](int64_t j) {
        out[begin + j] = std::bit_cast<float>(mean | (signs[j] >> bit & 1u) << 31);
      });
    }
  }
};

}  // namespace lockstep::codec
