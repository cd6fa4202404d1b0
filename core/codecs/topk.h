// Codec `topk`: of each cell the k elements of largest magnitude, of equal ones those with the
// lower index, as a 16-bit index in the cell and a bf16 value. k depends on the cell's size alone,
// so the wire's size is known beforehand, and no rank needs another's selection. NaNs and
// infinities have the largest magnitudes and therefore always travel.
#pragma once

#include <cmath>

#include "core/codecs/cell.h"

namespace lockstep::codec {

// All indices in ascending order, then all values.
struct TopK {
  static constexpr const char *name = "topk",
                              *help = "the elements of largest magnitude, `ratio` of each cell";
  static constexpr bool lossless = false;
  struct Local {
    uint32_t magnitudes[cell_size];
  };
  double ratio;

  explicit TopK(const CodecOptions& options) : ratio(options.ratio) {}
  const char* complaint() const {
    return ratio > 0 && ratio <= 1 ? nullptr : "give a share above 0 and up to 1";
  }
  LOCKSTEP_HD int32_t kept(int64_t n) const {
    const auto k = static_cast<int32_t>(lround(ratio * static_cast<double>(n)));
    return k > 1 ? k : 1;
  }
  LOCKSTEP_HD size_t bytes(int64_t n) const { return kept(n) * (sizeof(uint16_t) + sizeof(bf16)); }

  template <class Team>
  LOCKSTEP_TEAM void pack(const Team& team, const float* x, int64_t n, std::byte* wire,
                          Local& local) const {
    uint32_t* magnitudes = local.magnitudes;
    team.each(n, [=](int64_t i) { magnitudes[i] = magnitude_bits(x[i]); });
    team.sync();
    const int32_t k = kept(n);
    const uint32_t least = threshold(team, magnitudes, n, k);
    const auto equal_ones =
        static_cast<uint32_t>(k - team.count(n, [=](int64_t i) { return magnitudes[i] > least; }));
    uint16_t* index = reinterpret_cast<uint16_t*>(wire);
    bf16* value = reinterpret_cast<bf16*>(index + k);
    // Counted together: those above the threshold in the upper half, those that equal it below.
    const auto kind = [=](int64_t i) -> uint32_t {
      return magnitudes[i] > least ? 1u << 16 : magnitudes[i] == least;
    };
    team.scan(n, kind, [=](int64_t i, uint32_t before) {
      const uint32_t equal = before & 0xffffu;
      if (magnitudes[i] == least && equal >= equal_ones) return;
      const uint32_t at = (before >> 16) + (equal < equal_ones ? equal : equal_ones);
      index[at] = static_cast<uint16_t>(i);
      value[at] = to_bf16(x[i]);
    });
  }

  template <class Team>
  LOCKSTEP_TEAM void unpack(const Team& team, const std::byte* wire, int64_t n, float* out) const {
    const int32_t k = kept(n);
    const uint16_t* index = reinterpret_cast<const uint16_t*>(wire);
    const bf16* value = reinterpret_cast<const bf16*>(index + k);
    team.each(n, [=](int64_t i) { out[i] = 0.0f; });
    team.sync();
    team.each(k, [=](int64_t j) { out[index[j]] = to_float(value[j]); });
  }

 private:
  // The largest threshold that k elements reach, or a lower one if exactly k reach it: found bit by
  // bit from the top. At most 31 passes over what stays in the L1 cache or in shared memory, each a
  // few elements per cycle: faster than a partial sort, and as fast for any data.
  template <class Team>
  LOCKSTEP_TEAM static uint32_t threshold(const Team& team, const uint32_t* magnitudes, int64_t n,
                                          int32_t k) {
    uint32_t least = 0;
    for (uint32_t bit = 1u << 30; bit > 0; bit >>= 1) {
      const uint32_t tried = least | bit;
      const int32_t count = team.count(n, [=](int64_t i) { return magnitudes[i] >= tried; });
      if (count >= k) least = tried;
      if (count == k) break;
    }
    return least;
  }
};

}  // namespace lockstep::codec
