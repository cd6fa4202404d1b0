// The order of every sum over ranks: a balanced binary tree in rank order, ((0+1)+(2+3)), in fp32.
// An odd one out is carried up a level, so 5 ranks give ((0+1)+(2+3))+4. Bits therefore depend on
// the number of ranks and on nothing else. One pass over memory for any number of ranks.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <span>

namespace lockstep {

namespace tree_sum_detail {

constexpr size_t kBlock = 1024;  // floats; one block per tree level stays in the L1 cache

constexpr size_t kAhead = 512;  // floats; hides the latency of memory that another core wrote

// Asks for the lines of [at, at + count), as far as `left` allows.
inline void prefetch(const float* at, size_t left, size_t count) {
  if (left < kAhead + count) return;
  for (size_t i = 0; i < count; i += 16) __builtin_prefetch(at + i);
}

// out = a + b, where out may be a or b itself (never a shifted overlap): no iteration depends on
// another.
inline void add(const float* a, const float* b, float* out, size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

inline void add4(const float* a, const float* b, const float* c, const float* d, float* out,
                 size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) out[i] = (a[i] + b[i]) + (c[i] + d[i]);
}

// Sums [begin, begin + n) of `parts`, n <= kBlock. The halves go through buffers on the stack and
// reach `out` last, so out may be any of the parts.
inline void sum_block(std::span<const float* const> parts, float* out, size_t begin, size_t n) {
  switch (parts.size()) {
    case 1:
      if (out != parts[0] + begin) std::copy_n(parts[0] + begin, n, out);
      return;
    case 2:
      return add(parts[0] + begin, parts[1] + begin, out, n);
    case 4:
      return add4(parts[0] + begin, parts[1] + begin, parts[2] + begin, parts[3] + begin, out, n);
    default:
      const size_t half = std::bit_ceil(parts.size()) / 2;
      alignas(64) std::array<float, kBlock> left, right;
      sum_block(parts.first(half), left.data(), begin, n);
      sum_block(parts.subspan(half), right.data(), begin, n);
      add(left.data(), right.data(), out, n);
  }
}

}  // namespace tree_sum_detail

// parts: (ranks) pointers to n floats each, at least one. Every one of outs gets the sum (n
// floats); an out may be one of the parts.
inline void tree_sum(std::span<const float* const> parts, std::span<float* const> outs, size_t n) {
  using namespace tree_sum_detail;
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t count = std::min(kBlock, n - begin);
    for (const float* part : parts) prefetch(part + begin + kAhead, n - begin, count);
    sum_block(parts, outs[0] + begin, begin, count);
    for (float* out : outs.subspan(1)) std::copy_n(outs[0] + begin, count, out + begin);
  }
}

}  // namespace lockstep
