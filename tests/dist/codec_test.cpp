// The promises that dist/codec.h makes for every codec, row by row of the table. What each codec
// computes is tested in codec_values_test.cpp.
#include "dist/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <vector>

#include "core/parallel.h"
#include "dist/buckets.h"
#include "tests/core/expect_error.h"
#include "tests/dist/codec_data.h"

namespace lockstep {
namespace {

class EveryCodec : public testing::TestWithParam<const char*> {
 protected:
  const std::unique_ptr<Codec> codec_ = make_codec(GetParam(), {});
};

std::vector<const char*> names() {
  std::vector<const char*> all;
  for (const CodecEntry& entry : codec_table()) all.push_back(entry.name);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Table, EveryCodec, testing::ValuesIn(names()),
                         [](const auto& info) { return info.param; });

// Sent + rest = x: without error where |x - sent| is a float, else within the rounding of both
// operations. `none` and `rows` leave nothing.
TEST_P(EveryCodec, WhatIsNotSentIsTheRest) {
  for (int64_t n : codec_sizes) {
    const Floats x = normal(n);
    const Encoded e = encoded(*codec_, run_of(x), x);
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(e.rest[i], x[i] - e.decoded[i]) << "element " << i << " of " << n;
      ASSERT_NEAR(double{e.decoded[i]} + e.rest[i], x[i], unit * std::fabs(e.rest[i]));
      if (codec_->lossless()) {
        ASSERT_EQ(bits(e.decoded[i]), bits(x[i]));
        ASSERT_EQ(bits(e.rest[i]), 0u);
      }
    }
  }
}

// Everything that was to be sent has been sent in the end, or is the last rest: in each step one
// sum and one difference are rounded, each by at most `unit` times its result.
TEST_P(EveryCodec, ErrorFeedbackLosesNothing) {
  const int64_t n = 2 * cell_size + 100;
  Floats rest(n), sum(n);
  std::vector<double> given(n), sent(n), bound(n);
  for (unsigned step = 0; step < 40; ++step) {
    const Floats gradient = normal(n, step, step % 3 == 0 ? 1.0f : 1e-3f);
    for (int64_t i = 0; i < n; ++i) {
      sum[i] = gradient[i] + rest[i];
      given[i] += gradient[i];
    }
    const Encoded e = encoded(*codec_, run_of(sum), sum);
    for (int64_t i = 0; i < n; ++i) {
      sent[i] += e.decoded[i];
      bound[i] += unit * (std::fabs(sum[i]) + std::fabs(e.rest[i]));
    }
    rest = e.rest;
  }
  for (int64_t i = 0; i < n; ++i) ASSERT_NEAR(sent[i] + rest[i], given[i], bound[i]);
}

TEST_P(EveryCodec, ZerosStayZeros) {
  for (int64_t n : codec_sizes) {
    const Floats x(n);
    const Encoded e = encoded(*codec_, run_of(x), x);
    EXPECT_EQ(e.decoded, x);
    EXPECT_EQ(e.rest, x);
  }
}

TEST_P(EveryCodec, ANonFiniteElementIsSeenInItsCellAndNowhereElse) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const Floats clean = normal(3 * cell_size + 7);
  const Floats expected = encoded(*codec_, run_of(clean), clean).decoded;
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity})
    for (int64_t at : {int64_t{0}, cell_size - 1, cell_size + 17, 3 * cell_size + 6}) {
      Floats x = clean;
      x[at] = bad;
      const Floats decoded = encoded(*codec_, run_of(x), x).decoded;
      bool seen = false;
      for (int64_t i = 0; i < std::ssize(x); ++i) {
        if (i / cell_size == at / cell_size)
          seen = seen || !std::isfinite(decoded[i]);
        else
          ASSERT_EQ(bits(decoded[i]), bits(expected[i])) << i;
      }
      EXPECT_TRUE(seen) << bad << " at " << at;
    }
}

TEST_P(EveryCodec, AllNonFinite) {
  for (int64_t n : codec_sizes) {
    const Floats x(n, std::numeric_limits<float>::quiet_NaN());
    const Floats decoded = encoded(*codec_, run_of(x), x).decoded;
    for (int64_t begin = 0; begin < n; begin += cell_size)
      EXPECT_TRUE(std::any_of(decoded.begin() + begin,
                              decoded.begin() + std::min(n, begin + cell_size),
                              [](float value) { return std::isnan(value); }));
  }
}

// Also with the rest in place of x, with no rest, and whatever was in the memory of the wire.
TEST_P(EveryCodec, ThreadsAndMemoryChangeNoBit) {
  const Floats x = normal(9 * cell_size + 5);
  const CodecRun run = run_of(x);
  const int before = num_threads();
  std::vector<std::byte> first;
  Floats first_rest;
  for (int threads : {1, 2, 3}) {
    set_num_threads(threads);
    Wire wire(codec_->capacity(run), std::byte(threads));
    Floats rest = x;
    const size_t used = codec_->encode_alone(run, rest.data(), wire.data(), rest.data());
    Wire other(codec_->capacity(run), std::byte(17 * threads));
    EXPECT_EQ(codec_->encode_alone(run, x.data(), other.data(), nullptr), used);
    EXPECT_EQ(std::memcmp(wire.data(), other.data(), used), 0);
    if (threads == 1) {
      first.assign(wire.data(), wire.data() + used);
      first_rest = rest;
    }
    EXPECT_EQ(std::vector<std::byte>(wire.data(), wire.data() + used), first);
    EXPECT_EQ(rest, first_rest);
  }
  set_num_threads(before);
}

// However a parameter's cells are cut into runs, and wherever those lie one behind the other on a
// wire: the same numbers arrive.
TEST_P(EveryCodec, RunsCanBeCutAtAnyCell) {
  for (int64_t row : {1, 100, 5000}) {
    const Floats x = sparse_rows(5 * cell_size + 333, row);
    const Encoded whole = encoded(*codec_, run_of(x, row), x);
    for (int64_t cut = 1; cut < 5; ++cut) {
      const CodecRun left{cut * cell_size, 0, row},
          right{std::ssize(x) - left.elements, left.elements, row};
      Wire wire(codec_->capacity(left) + codec_->capacity(right), std::byte{0xff});
      const size_t used = codec_->encode_alone(left, x.data(), wire.data(), nullptr);
      codec_->encode_alone(right, x.data() + right.first, wire.data() + used, nullptr);
      Floats decoded(x.size());
      for (int64_t cell = 0; cell < cell_count(std::ssize(x)); ++cell) {
        float* out = decoded.data() + cell * cell_size;
        if (cell < cut)
          codec_->decode(left, wire.data(), cell, 1, out);
        else
          codec_->decode(right, wire.data() + used, cell - cut, 1, out);
      }
      ASSERT_EQ(decoded, whole.decoded) << row << " per row, cut at " << cut;
    }
  }
}

// Of many whole cells, padding and scales included.
TEST(CodecTable, WireIsAsNarrowAsPromised) {
  const CodecRun run{64 * cell_size, 0, 1024};
  const auto ratio = [&](const std::string& name) {
    const double fp32 = static_cast<double>(run.elements) * sizeof(float);
    return fp32 / static_cast<double>(make_codec(name, {})->capacity(run));
  };
  EXPECT_EQ(ratio("none"), 1.0);
  EXPECT_EQ(ratio("bf16"), 2.0);
  EXPECT_GE(ratio("int8"), 3.9);
  EXPECT_GE(ratio("topk"), 40.0);
  EXPECT_GE(ratio("sign"), 28.0);
  EXPECT_GE(ratio("rows"), 0.99) << "even if every row is touched";
}

TEST(CodecTable, TheReadmeShowsTheCodeOfBf16) {
  const auto text = [](const std::string& name) {
    std::ifstream file(LOCKSTEP_SOURCE_DIR + ("/" + name));
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string code = text("core/codecs/bf16.h");
  const size_t begin = code.find("struct Bf16"), end = code.find("};\n", begin);
  ASSERT_NE(end, std::string::npos);
  EXPECT_NE(text("dist/README.md").find(code.substr(begin, end - begin)), std::string::npos);
}

TEST(CodecTable, WhatCannotBeMade) {
  EXPECT_ERROR(make_codec("int4", {}), Exit::config,
               "[codec] no codec \"int4\"; there are none, bf16, int8, topk, rows, sign");
  for (double ratio : {0.0, -0.1, 1.5, std::nan("")})
    EXPECT_ERROR(
        make_codec("topk", {.ratio = ratio}), Exit::config,
        fmt::format("[codec] topk with ratio {}; give a share above 0 and up to 1", ratio));
}

}  // namespace
}  // namespace lockstep
