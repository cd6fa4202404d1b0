// What each codec computes, against its definition written down here once more: one element after
// the other, in double precision, with the standard library's sorting and rounding.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/dist/codec_data.h"

namespace lockstep {
namespace {

Encoded encoded(const std::string& name, const Floats& x, const CodecOptions& options = {}) {
  return lockstep::encoded(*make_codec(name, options), run_of(x), x);
}

// Small integers in a fixed jumble, from -range to range.
Floats integers(int64_t n, int range) {
  Floats x(n);
  for (int64_t i = 0; i < n; ++i)
    x[i] = static_cast<float>((i * 7919 + i / 3) % (2 * range + 1) - range);
  return x;
}

// body(begin, end) for each cell of n elements.
template <class Body>
void for_cells(int64_t n, Body&& body) {
  for (int64_t begin = 0; begin < n; begin += cell_size)
    body(begin, std::min(n, begin + cell_size));
}

double largest(const Floats& x, int64_t begin, int64_t end) {
  double result = 0;
  for (int64_t i = begin; i < end; ++i) result = std::max(result, std::fabs(double{x[i]}));
  return result;
}

// Eight significant bits, ties to even.
double rounded_to_bf16(double x) {
  int exponent;
  const double fraction = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), exponent - 8);
}

void expect_exact_rest(const Encoded& e, const Floats& x) {
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(double{e.decoded[i]} + double{e.rest[i]}, double{x[i]}) << "element " << i;
    ASSERT_EQ(e.decoded[i] + e.rest[i], x[i]) << "element " << i;
  }
}

TEST(CodecBf16, RoundsToEightBits) {
  for (int64_t n : codec_sizes) {
    const Floats x = normal(n);
    const Encoded e = encoded("bf16", x);
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(double{e.decoded[i]}, rounded_to_bf16(x[i]));
    expect_exact_rest(e, x);
  }
}

TEST(CodecBf16, TiesGoToEven) {
  const Encoded e = encoded("bf16", {257, 259, -257, -259, 256});
  EXPECT_EQ(e.decoded, (Floats{256, 260, -256, -260, 256}));
  EXPECT_EQ(e.rest, (Floats{1, -1, -1, 1, 0}));
}

TEST(CodecInt8, RoundsToMultiplesOfTheScale) {
  for (int64_t n : codec_sizes) {
    const Floats x = normal(n, 3);
    const Encoded e = encoded("int8", x);
    for_cells(n, [&](int64_t begin, int64_t end) {
      const double scale = largest(x, begin, end) / 127;
      // The scale, the quotient and the product are rounded, each by at most `unit`: near a tie
      // the other neighbour may be taken, and up to 127 scales are off.
      const double bound = scale * (0.5 + 3 * unit * 127);
      for (int64_t i = begin; i < end; ++i) {
        ASSERT_LE(std::fabs(double{x[i]} - e.decoded[i]), bound);
        const double steps = e.decoded[i] / scale;
        ASSERT_NEAR(steps, std::nearbyint(steps), 3 * unit * 127);
        ASSERT_LE(std::fabs(std::nearbyint(steps)), 127);
      }
    });
    expect_exact_rest(e, x);
  }
}

TEST(CodecInt8, IsExactOnItsGrid) {
  for (float scale : {1.0f, 0x1p-20f, 0x1p100f}) {
    Floats x = integers(2 * cell_size + 9, 127);
    for_cells(std::ssize(x), [&](int64_t begin, int64_t) { x[begin] = -127; });
    for (float& value : x) value *= scale;
    const Encoded e = encoded("int8", x);
    EXPECT_EQ(e.decoded, x);
    EXPECT_EQ(e.rest, Floats(x.size()));
  }
}

TEST(CodecInt8, TiesGoToEven) {
  const Encoded e = encoded("int8", {127, 0.5, 1.5, -0.5, -1.5, 2.5, -126.5});
  EXPECT_EQ(e.decoded, (Floats{127, 0, 2, 0, -2, 2, -126}));
  EXPECT_EQ(e.rest, (Floats{0, 0.5, -0.5, -0.5, 0.5, 0.5, -0.5}));
}

TEST(CodecInt8, EachCellHasItsOwnScale) {
  Floats x = integers(2 * cell_size, 127);
  x[0] = x[cell_size] = 127;
  for (int64_t i = 0; i < cell_size; ++i) x[i] *= 0x1p10f;
  EXPECT_EQ(encoded("int8", x).decoded, x);
}

// A scale below the normal numbers is too coarse: all stays in the rest.
TEST(CodecInt8, TinyNumbersWait) {
  constexpr float least = std::numeric_limits<float>::min();
  for (float tiny : {least, least / 8, std::numeric_limits<float>::denorm_min()}) {
    const Floats x(20, tiny);
    const Encoded e = encoded("int8", x);
    EXPECT_EQ(e.decoded, Floats(20));
    EXPECT_EQ(e.rest, x);
  }
  const Floats x(20, 127 * least);
  EXPECT_EQ(encoded("int8", x).decoded, x);
}

std::vector<int64_t> by_magnitude(const Floats& x, int64_t begin, int64_t end) {
  std::vector<int64_t> order(end - begin);
  std::iota(order.begin(), order.end(), begin);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return std::fabs(x[a]) > std::fabs(x[b]); });
  return order;
}

void expect_top(const Floats& x, double ratio) {
  SCOPED_TRACE(fmt::format("{} elements, ratio {}", x.size(), ratio));
  const Encoded e = encoded("topk", x, {.ratio = ratio});
  Floats expected(x.size());
  for_cells(std::ssize(x), [&](int64_t begin, int64_t end) {
    const auto k = std::max(1.0, std::round(ratio * static_cast<double>(end - begin)));
    const auto order = by_magnitude(x, begin, end);
    for (int64_t i = 0; i < static_cast<int64_t>(k); ++i)
      expected[order[i]] = static_cast<float>(rounded_to_bf16(x[order[i]]));
  });
  EXPECT_EQ(e.decoded, expected);
  expect_exact_rest(e, x);
}

TEST(CodecTopK, TakesTheLargest) {
  for (int64_t n : codec_sizes)
    for (double ratio : {1e-9, 0.01, 0.1, 0.5, 1.0}) {
      expect_top(normal(n, 5), ratio);
      expect_top(integers(n, 3), ratio);  // thousands of equal magnitudes, of both signs
      expect_top(integers(n, 1000), ratio);
    }
}

TEST(CodecTopK, OfEqualOnesTheFirst) {
  Floats x(400, -2.0f);  // k = 4
  x[77] = 3;
  Floats expected(400);
  expected[0] = expected[1] = expected[2] = -2;
  expected[77] = 3;
  EXPECT_EQ(encoded("topk", x).decoded, expected);
}

TEST(CodecTopK, BytesFollowFromTheRatio) {
  const auto bytes = [](int64_t n, double ratio) {
    return make_codec("topk", {.ratio = ratio})->capacity({n, 0, n});
  };
  EXPECT_EQ(bytes(4096, 0.01), 176u);  // 41 x 4, padded
  EXPECT_EQ(bytes(2 * 4096 + 10, 0.01), 2 * 176u + 16);
  EXPECT_EQ(bytes(4096, 1.0), 4096u * 4);
  EXPECT_EQ(bytes(4096, 1e-9), 16u);
}

TEST(CodecSign, SendsSignsTimesTheMean) {
  for (int64_t n : codec_sizes) {
    const Floats x = normal(n, 7);
    const Encoded e = encoded("sign", x);
    for_cells(n, [&](int64_t begin, int64_t end) {
      double mean = 0;
      for (int64_t i = begin; i < end; ++i) mean += std::fabs(double{x[i]}) / (end - begin);
      for (int64_t i = begin; i < end; ++i) {
        ASSERT_EQ(std::signbit(e.decoded[i]), std::signbit(x[i])) << i << " of " << n;
        ASSERT_NEAR(std::fabs(e.decoded[i]), mean, 1.001 * unit * mean);
      }
    });
  }
}

TEST(CodecSign, IsExactForSmallIntegers) {
  Floats x(2 * cell_size), expected(x.size());
  for (int64_t i = 0; i < std::ssize(x); ++i) {
    const float magnitude = i % 2 ? 1 : 5;  // mean 3
    x[i] = i * i % 11 < 5 ? magnitude : -magnitude;
    expected[i] = std::copysign(3.0f, x[i]);
  }
  const Encoded e = encoded("sign", x);
  EXPECT_EQ(e.decoded, expected);
  expect_exact_rest(e, x);
}

TEST(CodecSign, HugeNumbersHaveAMean) {
  const Floats x(cell_size, std::numeric_limits<float>::max());
  EXPECT_EQ(encoded("sign", x).decoded, x);
}

// The format that core/codecs/rows.h describes, counted row by row.
size_t bytes_of_rows(const CodecRun& run, const Floats& x) {
  size_t bytes = wire_aligned(4 * ((x.size() + cell_size - 1) / cell_size));
  for_cells(std::ssize(x), [&](int64_t begin, int64_t end) {
    std::vector<int64_t> rows, touched;
    int64_t elements = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = (run.first + i) / run.row;
      if (rows.empty() || rows.back() != row) rows.push_back(row);
      if (bits(x[i]) != 0 && (touched.empty() || touched.back() != row)) touched.push_back(row);
    }
    for (int64_t i = begin; i < end; ++i)
      elements += std::count(touched.begin(), touched.end(), (run.first + i) / run.row);
    if (elements > 0) bytes += wire_aligned((rows.size() + 7) / 8) + wire_aligned(4 * elements);
  });
  return bytes;
}

void expect_rows(const CodecRun& run, const Floats& x) {
  const Encoded e = lockstep::encoded(*make_codec("rows", {}), run, x);
  EXPECT_EQ(e.bytes, bytes_of_rows(run, x));
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(bits(e.decoded[i]), bits(x[i])) << i << " of " << x.size() << ", row " << run.row;
    ASSERT_EQ(bits(e.rest[i]), 0u);
  }
}

TEST(CodecRows, LosslessWhateverTheRowsAre) {
  for (int64_t n : codec_sizes)
    for (int64_t row : {1, 7, 64, 4095, 4096, 4097, 10000})
      for (int64_t first : {int64_t{0}, 5 * cell_size}) {
        const CodecRun run{n, first, row};
        expect_rows(run, sparse_rows(n, row));
        expect_rows(run, Floats(n));
        expect_rows(run, normal(n));
      }
}

// 128 rows' elements in 129 segments: one more than fill 16 bytes of the bitmap.
TEST(CodecRows, TheBitmapCountsBothEndsOfACell) {
  expect_rows({31 * 128, cell_size, 31}, normal(31 * 128));
}

TEST(CodecRows, NeedsAllItsCapacityWhenNothingIsZero) {
  const Floats x = normal(3 * cell_size + 7);
  const auto codec = make_codec("rows", {});
  EXPECT_EQ(lockstep::encoded(*codec, run_of(x), x).bytes, codec->capacity(run_of(x)));
}

TEST(CodecRows, ARowIsZeroOnlyIfAllItsBitsAre) {
  Floats x(cell_size);
  x[100] = -0.0f;
  x[3000] = std::numeric_limits<float>::denorm_min();
  x[3500] = std::bit_cast<float>(0x7fc01234u);  // a NaN with a payload
  expect_rows(run_of(x, 32), x);
  EXPECT_EQ(lockstep::encoded(*make_codec("rows", {}), run_of(x, 32), x).bytes,
            16u + 16 + 3 * 32 * sizeof(float));
}

TEST(CodecRows, ARowAcrossCellsTravelsInPieces) {
  Floats x(3 * cell_size);
  x[cell_size - 1] = 1;  // the row [4000, 8000): only its segment in the first cell
  expect_rows(run_of(x, 4000), x);
  EXPECT_EQ(lockstep::encoded(*make_codec("rows", {}), run_of(x, 4000), x).bytes,
            16u + 16 + 96 * sizeof(float));
}

TEST(CodecNone, SendsTheBits) {
  Floats x = normal(cell_size + 3);
  x[5] = -0.0f;
  x[6] = std::bit_cast<float>(0x7fc01234u);
  const Encoded e = encoded("none", x);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(bits(e.decoded[i]), bits(x[i]));
}

TEST(Powers, AreNearTheRootAndTheWayThereAndBackRoundsNothing) {
  Floats v = normal(3 * cell_size);
  for (float& x : v) x = x * x * 1e-9f;
  v[7] = 0, v[8] = 1, v[9] = 4, v[10] = 3e38f, v[11] = 1.2e-38f;
  std::vector<uint8_t> powers(v.size());
  backend().root_powers(v.data(), powers.data(), std::ssize(v));
  const Floats x = normal(std::ssize(v), 2, 1e-4f);
  Floats scaled = x;
  backend().scale_by_powers(powers.data(), true, scaled.data(), std::ssize(x));
  Floats back = scaled;
  backend().scale_by_powers(powers.data(), false, back.data(), std::ssize(x));
  for (size_t i = 0; i < v.size(); ++i) {
    if (i == 7) continue;
    const double power = double{x[i]} / double{scaled[i]}, root = std::sqrt(double{v[i]});
    ASSERT_EQ(std::exp2(std::round(std::log2(power))), power) << i;
    ASSERT_LE(power / root, std::sqrt(2) * (1 + 1e-6)) << v[i];
    ASSERT_GE(power / root, std::sqrt(0.5) * (1 - 1e-6)) << v[i];
    ASSERT_EQ(back[i], x[i]) << i;
  }
  EXPECT_EQ(scaled[7], 0.0f) << "an element without a second moment counts as zero";
  EXPECT_EQ(back[7], 0.0f);
}

}  // namespace
}  // namespace lockstep
