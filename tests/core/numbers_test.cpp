// bf16, Philox and initial values: number by number, against published or exhaustive facts.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "core/init.h"
#include "core/philox.h"
#include "tests/core/expect_error.h"

namespace lockstep {
namespace {

float float_of(uint32_t bits) {
  return std::bit_cast<float>(bits);
}

TEST(Bf16, EveryValueSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const bf16 x{static_cast<uint16_t>(bits)};
    const float f = to_float(x);
    EXPECT_EQ(std::bit_cast<uint32_t>(f), bits << 16);
    if (std::isnan(f))
      EXPECT_TRUE(std::isnan(to_float(to_bf16(f))));
    else
      EXPECT_EQ(to_bf16(f).bits, bits);
  }
}

// Between every two neighbours: below the middle rounds down, above it up, the middle to even.
TEST(Bf16, RoundsToNearestEven) {
  for (uint32_t sign : {0u, 0x8000u}) {
    for (uint32_t low = 0; low < 0x7f80; ++low) {
      const uint32_t bits = sign | low, middle = bits << 16 | 0x8000u;
      EXPECT_EQ(to_bf16(float_of(middle - 1)).bits, bits);
      EXPECT_EQ(to_bf16(float_of(middle + 1)).bits, bits + 1);
      EXPECT_EQ(to_bf16(float_of(middle)).bits, low % 2 == 0 ? bits : bits + 1);
    }
  }
}

TEST(Bf16, NanStaysNanWhereverItsPayloadIs) {
  for (uint32_t payload : {1u, 0x7fffu, 0x8000u, 0xffffu, 0x10000u, 0x3fffffu, 0x7fffffu})
    for (uint32_t sign : {0u, 0x80000000u})
      EXPECT_TRUE(std::isnan(to_float(to_bf16(float_of(sign | 0x7f800000u | payload)))));
  EXPECT_TRUE(std::isinf(to_float(to_bf16(std::numeric_limits<float>::max()))));
  EXPECT_TRUE(std::isinf(to_float(to_bf16(std::numeric_limits<float>::infinity()))));
}

TEST(DType, SizesAndNames) {
  EXPECT_EQ(size_of(DType::bf16), 2u);
  EXPECT_EQ(size_of(DType::f64), 8u);
  EXPECT_STREQ(name_of(DType::i32), "i32");
  EXPECT_EQ(dtype_of<uint8_t>(), DType::u8);
}

// Random123's known answers (kat_vectors, philox4x32 10).
TEST(Philox, KnownAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox(0)(0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox(~0ull)(~0ull, ~0ull), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox(0x299f31d0a4093822)(0x85a308d3243f6a88, 0x0370734413198a2e),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UnitIntervals) {
  EXPECT_EQ(to_unit_float(0), 0.0f);
  EXPECT_LT(to_unit_float(~0u), 1.0f);
  EXPECT_GT(to_open_unit(0), 0.0);
  EXPECT_LT(to_open_unit(~0u), 1.0);
}

TEST(Philox, StreamsDifferBySeedAndName) {
  EXPECT_NE(stream_key(1, "a"), stream_key(1, "b"));
  EXPECT_NE(stream_key(1, "a"), stream_key(2, "a"));
  EXPECT_NE(stream_key(0, ""), stream_key(1, ""));
  EXPECT_EQ(stream_key(7, "blocks.0.w"), stream_key(7, "blocks.0.w"));
}

std::vector<float> normal(Shape shape, uint64_t seed, const char* name, double std = 1) {
  Tensor t = Tensor::empty(std::move(shape));
  normal_(t, seed, name, std);
  return t.to_vector<float>();
}

TEST(Init, IsTheBoxMullerTransformOfTheStream) {
  const auto words = Philox(stream_key(5, "w"))(1);  // elements 4 to 7
  const std::vector<float> values = normal({7}, 5, "w", 0.02);
  const double radius = std::sqrt(-2 * std::log((words[0] + 0.5) / 4294967296.0));
  const double angle = 2 * std::numbers::pi * (words[1] + 0.5) / 4294967296.0;
  EXPECT_FLOAT_EQ(values[4], static_cast<float>(0.02 * radius * std::cos(angle)));
  EXPECT_FLOAT_EQ(values[5], static_cast<float>(0.02 * radius * std::sin(angle)));
}

TEST(Init, DependsOnSeedNameAndPositionOnly) {
  const std::vector<float> few = normal({5}, 1, "w"), many = normal({100, 101}, 1, "w");
  EXPECT_EQ(few, std::vector<float>(many.begin(), many.begin() + 5));
  EXPECT_NE(few, normal({5}, 2, "w"));
  EXPECT_NE(few, normal({5}, 1, "v"));
  Tensor narrow = Tensor::empty({5}, DType::bf16);
  normal_(narrow, 1, "w", 1);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(narrow.to_vector<bf16>()[i].bits, to_bf16(few[i]).bits);
}

// Moments of n draws, each within 5 standard errors: 1/n, 2/n and 96/n are the variances of the
// mean, of the mean square and of the mean fourth power.
TEST(Init, HasTheMomentsOfANormal) {
  const double n = 200000;
  double mean = 0, square = 0, fourth = 0, neighbours = 0;
  const std::vector<float> values = normal({200000}, 3, "w");
  for (size_t i = 0; i < values.size(); ++i) {
    const double z = values[i];
    mean += z / n, square += z * z / n, fourth += z * z * z * z / n;
    if (i > 0) neighbours += z * values[i - 1] / n;
  }
  EXPECT_NEAR(mean, 0, 5 * std::sqrt(1 / n));
  EXPECT_NEAR(square, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(fourth, 3, 5 * std::sqrt(96 / n));
  EXPECT_NEAR(neighbours, 0, 5 * std::sqrt(1 / n));
}

TEST(Init, Misuse) {
  Tensor ids = Tensor::zeros({2}, DType::i32);
  EXPECT_ERROR(normal_(ids, 1, "w", 1), Exit::internal,
               "[normal_] i32[2]; contiguous f32 or bf16 is right");
}

}  // namespace
}  // namespace lockstep
