// Codec `sign`: one bit per element, and per cell the mean magnitude by which the signs are
// multiplied (scaled signs of EF-signSGD, Karimireddy et al. 2019; 1-bit Adam, Tang et al. 2021,
// sends momenta so). Only error feedback makes it converge. A zero counts as positive.
#include <bit>
#include <cmath>
#include <cstring>

#include "dist/codec.h"

namespace lockstep {

namespace {

double mean_magnitude(const float* x, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(std::fabs(x[i]));
  return sum / static_cast<double>(n);
}

// The mean, then w = ceil(n / 32) words: bit b of word j is the sign of element b w + j. So a
// vector of words meets vectors of consecutive elements, and nothing is moved across lanes.
class Sign final : public CellCodec {
 public:
  bool lossless() const override { return false; }

 private:
  static int64_t words(int64_t n) { return (n + 31) / 32; }

  size_t cell_bytes(int64_t n) const override {
    return sizeof(float) + words(n) * sizeof(uint32_t);
  }

  void pack(const float* x, int64_t n, std::byte* wire) const override {
    const float mean = static_cast<float>(mean_magnitude(x, n));
    alignas(64) uint32_t signs[cell_size / 32] = {};
    for (int64_t bit = 0, begin = 0; begin < n; ++bit, begin += words(n)) {
      const int64_t count = std::min(words(n), n - begin);
#pragma GCC ivdep
      for (int64_t j = 0; j < count; ++j)
        signs[j] |= std::bit_cast<uint32_t>(x[begin + j]) >> 31 << bit;
    }
    std::memcpy(wire, &mean, sizeof mean);
    std::memcpy(wire + sizeof mean, signs, words(n) * sizeof(uint32_t));
  }

  void unpack(const std::byte* wire, int64_t n, float* out) const override {
    uint32_t mean;  // its bits, which are not negative
    alignas(64) uint32_t signs[cell_size / 32];
    std::memcpy(&mean, wire, sizeof mean);
    std::memcpy(signs, wire + sizeof mean, words(n) * sizeof(uint32_t));
    for (int64_t bit = 0, begin = 0; begin < n; ++bit, begin += words(n)) {
      const int64_t count = std::min(words(n), n - begin);
#pragma GCC ivdep
      for (int64_t j = 0; j < count; ++j)
        out[begin + j] = std::bit_cast<float>(mean | (signs[j] >> bit & 1u) << 31);
    }
  }
};

}  // namespace

std::unique_ptr<Codec> make_sign(const CodecOptions&) {
  return std::make_unique<Sign>();
}

}  // namespace lockstep
