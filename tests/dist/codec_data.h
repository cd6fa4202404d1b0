// What tests of codecs share: numbers to encode, and one trip over a wire.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <memory>
#include <random>
#include <vector>

#include "dist/buckets.h"
#include "dist/codec.h"

namespace lockstep {

using Floats = std::vector<float>;

constexpr double unit = 0x1p-24;  // of fp32 rounding, relative to the result

inline const std::vector<int64_t> codec_sizes = {1, 15, 4095, 4096, 4097, 3 * 4096 + 7};

inline uint32_t bits(float x) {
  return std::bit_cast<uint32_t>(x);
}

// A row that neither divides a cell nor is divided by one.
inline CodecRun run_of(const Floats& x, int64_t row = 48) {
  return {std::ssize(x), 0, row};
}

inline Floats normal(int64_t n, unsigned seed = 1, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution(0, scale);
  Floats x(n);
  for (float& value : x) value = distribution(random);
  return x;
}

// Two rows of three are zero.
inline Floats sparse_rows(int64_t n, int64_t row) {
  Floats x = normal(n);
  for (int64_t i = 0; i < n; ++i)
    if (i / row % 3 > 0) x[i] = 0;
  return x;
}

// Aligned as promised and no better, and full of `filler`, which must still stand behind its end
// when it goes.
class Wire {
 public:
  Wire(size_t bytes, std::byte filler)
      : bytes_(bytes), filler_(filler), memory_(new (std::align_val_t{64}) std::byte[bytes + 32]) {
    std::fill_n(memory_, bytes + 32, filler);
  }
  ~Wire() {
    EXPECT_TRUE(std::all_of(data() + bytes_, memory_ + bytes_ + 32,
                            [&](std::byte b) { return b == filler_; }));
    operator delete[](memory_, std::align_val_t{64});
  }
  Wire(const Wire&) = delete;
  std::byte* data() const { return memory_ + 16; }

 private:
  size_t bytes_;
  std::byte filler_;
  std::byte* memory_;
};

struct Encoded {
  Floats decoded, rest;  // what a receiver gets, what the sender keeps
  size_t bytes;
};

inline Encoded encoded(const Codec& codec, const CodecRun& run, const Floats& x) {
  const size_t capacity = codec.capacity(run);
  EXPECT_EQ(capacity % 16, 0u);
  const Wire wire(capacity, std::byte{0xff});
  Encoded result{Floats(x.size()), Floats(x.size()), 0};
  result.bytes = codec.encode_alone(run, x.data(), wire.data(), result.rest.data());
  EXPECT_LE(result.bytes, capacity);
  EXPECT_EQ(result.bytes % 16, 0u);
  for (int64_t cell = 0; cell < cell_count(run.elements); ++cell)
    codec.decode(run, wire.data(), cell, 1, result.decoded.data() + cell * cell_size);
  return result;
}

}  // namespace lockstep
