// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a random
// number as a pure function of a key and a counter, so that every element can be drawn alone, in
// any order, on any rank, and drawn again in recomputation. Read next: init and dropout, its users.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "core/dtype.h"

namespace lockstep {

struct Philox {
  uint32_t key0, key1;

  LOCKSTEP_HD explicit constexpr Philox(uint64_t key)
      : key0(static_cast<uint32_t>(key)), key1(static_cast<uint32_t>(key >> 32)) {}

  // Four independent 32-bit words for the 128-bit counter (hi, lo).
  LOCKSTEP_HD constexpr std::array<uint32_t, 4> operator()(uint64_t lo, uint64_t hi = 0) const {
    uint32_t c0 = static_cast<uint32_t>(lo), c1 = static_cast<uint32_t>(lo >> 32);
    uint32_t c2 = static_cast<uint32_t>(hi), c3 = static_cast<uint32_t>(hi >> 32);
    uint32_t k0 = key0, k1 = key1;
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
      const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
      const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
      c0 = n0, c1 = static_cast<uint32_t>(p1), c2 = n2, c3 = static_cast<uint32_t>(p0);
      k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return {c0, c1, c2, c3};
  }
};

// 24 random bits as a float in [0, 1).
LOCKSTEP_HD constexpr float to_unit_float(uint32_t bits) {
  return (bits >> 8) * 0x1p-24f;
}
// 32 random bits as a double in (0, 1): safe for a logarithm.
constexpr double to_open_unit(uint32_t bits) {
  return (bits + 0.5) * 0x1p-32;
}

// A stream's key from a seed and a name: FNV-1a, then mixed (splitmix64's finaliser).
constexpr uint64_t stream_key(uint64_t seed, std::string_view name) {
  uint64_t h = 0xcbf29ce484222325ull ^ seed;
  for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
  return h ^ (h >> 31);
}

// Dropout's random words for elements 4 group .. 4 group + 3 of a global sample in one step; an
// element is dropped if to_unit_float of its word is below p.
LOCKSTEP_HD constexpr std::array<uint32_t, 4> dropout_words(uint64_t stream, int32_t step,
                                                            int64_t sample, int64_t group) {
  const uint64_t lo = static_cast<uint64_t>(group) | static_cast<uint64_t>(step) << 32;
  return Philox(stream)(lo, static_cast<uint64_t>(sample));
}

}  // namespace lockstep
