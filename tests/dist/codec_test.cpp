// Codecs against codecs written here as their definitions say, one element after the other in
// double precision; and the promises of dist/codec.h, for each row of the table.
#include "dist/codec.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/parallel.h"
#include "dist/buckets.h"
#include "tests/core/expect_error.h"

namespace lockstep {
namespace {

using Floats = std::vector<float>;

constexpr int64_t kRow = 48;  // neither divides a cell nor is divided by it
const std::vector<int64_t> kSizes = {1, 15, 4095, 4096, 4097, 3 * 4096 + 7};

CodecRun run_of(const Floats& x, int64_t row = kRow) {
  return {std::ssize(x), 0, row};
}

struct Encoded {
  Floats decoded, rest;
  size_t bytes;
};

// What a receiver gets and what the sender keeps. The wire is full of ones before, and so must be
// what lies behind the capacity afterwards.
Encoded encoded(const Codec& codec, const CodecRun& run, const Floats& x) {
  const size_t capacity = codec.capacity(run);
  EXPECT_EQ(capacity % 16, 0u);
  std::vector<std::max_align_t> memory(capacity / sizeof(std::max_align_t) + 2);
  const std::span<std::byte> wire = std::as_writable_bytes(std::span(memory));
  std::fill(wire.begin(), wire.end(), std::byte{0xff});
  Encoded result{Floats(x.size()), Floats(x.size()), 0};
  result.bytes = codec.encode(run, x.data(), wire.data(), result.rest.data());
  EXPECT_LE(result.bytes, capacity);
  EXPECT_EQ(result.bytes % 16, 0u);
  for (size_t i = capacity; i < wire.size(); ++i) EXPECT_EQ(wire[i], std::byte{0xff});
  for (int64_t cell = 0; cell < cell_count(run.elements); ++cell)
    codec.decode_cell(run, wire.data(), cell, result.decoded.data() + cell * cell_size);
  return result;
}

Encoded encoded(const std::string& name, const Floats& x) {
  return encoded(*make_codec(name, {}), run_of(x), x);
}

Floats normal(int64_t n, unsigned seed = 1, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution(0, scale);
  Floats x(n);
  for (float& value : x) value = distribution(random);
  return x;
}

uint32_t bits(float x) {
  return std::bit_cast<uint32_t>(x);
}

TEST(Codec, NoneAndBf16RoundTrip) {
  for (int64_t n : kSizes) {
    const Floats x = normal(n);
    const Encoded none = encoded("none", x), narrow = encoded("bf16", x);
    for (int64_t i = 0; i < n; ++i) {
      EXPECT_EQ(bits(none.decoded[i]), bits(x[i]));
      EXPECT_EQ(none.rest[i], 0.0f);
      EXPECT_EQ(narrow.decoded[i] + narrow.rest[i], x[i]);
      EXPECT_LE(std::fabs(narrow.rest[i]), std::ldexp(std::fabs(x[i]), -8));
    }
  }
}

TEST(Codec, UnknownName) {
  EXPECT_ERROR(make_codec("int4", {}), Exit::config,
               "[codec] no codec \"int4\"; there are none, bf16");
}

}  // namespace
}  // namespace lockstep
