// Codec `topk`: of each cell the k elements of largest magnitude, of equal ones those with the
// lower index, as a 16-bit index in the cell and a bf16 value. k depends on the cell's size alone,
// so the wire's size is known beforehand, and no rank needs another's selection. NaNs and
// infinities have the largest magnitudes and therefore always travel.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "dist/codec.h"

namespace lockstep {

namespace {

int32_t count_at_least(const uint32_t* magnitudes, int64_t n, uint32_t threshold) {
  int32_t count = 0;
#pragma omp simd reduction(+ : count)
  for (int64_t i = 0; i < n; ++i) count += magnitudes[i] >= threshold;
  return count;
}

// The largest threshold that k elements reach, or a lower one if exactly k reach it: found bit by
// bit from the top. At most 31 passes that stay in the L1 cache, each a few elements per cycle:
// faster than a partial sort, and as fast for any data.
uint32_t threshold_for(const uint32_t* magnitudes, int64_t n, int32_t k) {
  uint32_t threshold = 0;
  for (uint32_t bit = 1u << 30; bit > 0; bit >>= 1) {
    const int32_t count = count_at_least(magnitudes, n, threshold | bit);
    if (count >= k) threshold |= bit;
    if (count == k) break;
  }
  return threshold;
}

// All indices in ascending order, then all values.
class TopK final : public CellCodec {
 public:
  explicit TopK(double ratio) : ratio_(ratio) {}
  bool lossless() const override { return false; }

 private:
  int32_t kept(int64_t n) const {
    return std::max(1, static_cast<int32_t>(std::lround(ratio_ * static_cast<double>(n))));
  }

  size_t cell_bytes(int64_t n) const override {
    return kept(n) * (sizeof(uint16_t) + sizeof(bf16));
  }

  void pack(const float* x, int64_t n, std::byte* wire) const override {
    alignas(64) uint32_t magnitudes[cell_size];
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) magnitudes[i] = std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu;
    const int32_t k = kept(n);
    const uint32_t threshold = threshold_for(magnitudes, n, k);
    int32_t equal_ones = k - count_at_least(magnitudes, n, threshold + 1);
    uint16_t* index = reinterpret_cast<uint16_t*>(wire);
    bf16* value = reinterpret_cast<bf16*>(index + k);
    for (int64_t i = 0; i < n; ++i) {
      if (magnitudes[i] < threshold) continue;
      if (magnitudes[i] == threshold && equal_ones-- <= 0) continue;
      *index++ = static_cast<uint16_t>(i);
      *value++ = to_bf16(x[i]);
    }
  }

  void unpack(const std::byte* wire, int64_t n, float* out) const override {
    const int32_t k = kept(n);
    const uint16_t* index = reinterpret_cast<const uint16_t*>(wire);
    const bf16* value = reinterpret_cast<const bf16*>(index + k);
    std::memset(out, 0, n * sizeof(float));
    for (int32_t j = 0; j < k; ++j) out[index[j]] = to_float(value[j]);
  }

  double ratio_;
};

}  // namespace

std::unique_ptr<Codec> make_topk(const CodecOptions& options) {
  if (!(options.ratio > 0 && options.ratio <= 1))
    fail(Exit::config, "[codec] topk with ratio {}; give a share above 0 and up to 1",
         options.ratio);
  return std::make_unique<TopK>(options.ratio);
}

}  // namespace lockstep
