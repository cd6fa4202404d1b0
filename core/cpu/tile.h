// Products and transposes of small fp32 tiles that stay in cache: what attention is made of,
// and the vectors of every product.
// Written with the compiler's vector extension, 16 floats at a time; rows of every tile are
// multiples of 16 floats and 64-byte aligned. Read next: block.h.
#pragma once

#include <cstdint>
#include <type_traits>

namespace lockstep {

constexpr int64_t lanes = 16;
typedef float Lanes __attribute__((vector_size(lanes * sizeof(float)), may_alias));
typedef int32_t LaneIndices __attribute__((vector_size(lanes * sizeof(int32_t))));

constexpr int64_t pieces(int64_t n, int64_t piece) {
  return (n + piece - 1) / piece;
}

constexpr int64_t round_up(int64_t n, int64_t multiple) {
  return pieces(n, multiple) * multiple;
}

// A factor read one element at a time: element (i, p) is at data[i * row_step + p * column_step],
// so its transpose costs nothing.
struct Factor {
  const float* data;
  int64_t row_step, column_step;
};

constexpr int64_t rows_at_once = 4;

// Four rows of c [4, 16 v] (+)= a [4, k] b [k, 16 v], accumulated in registers.
template <int v>
void multiply_four_rows(int64_t k, Factor a, const float* b, int64_t b_step, float* c,
                        int64_t c_step, bool accumulate) {
  Lanes sum[4][v];
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < v; ++j)
      sum[i][j] = accumulate ? *reinterpret_cast<Lanes*>(c + i * c_step + j * lanes) : Lanes{};
  for (int64_t p = 0; p < k; ++p) {
    Lanes row[v];
    for (int j = 0; j < v; ++j)
      row[j] = *reinterpret_cast<const Lanes*>(b + p * b_step + j * lanes);
    for (int i = 0; i < 4; ++i) {
      const float factor = a.data[i * a.row_step + p * a.column_step];
      for (int j = 0; j < v; ++j) sum[i][j] += factor * row[j];
    }
  }
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < v; ++j) *reinterpret_cast<Lanes*>(c + i * c_step + j * lanes) = sum[i][j];
}

// c [4, n] (+)= a [4, k] b [k, n]; n a multiple of 16.
inline void multiply(int64_t n, int64_t k, Factor a, const float* b, int64_t b_step, float* c,
                     int64_t c_step, bool accumulate) {
  for (int64_t j = 0; j < n; j += 4 * lanes) {
    const auto columns = [&](auto v) {
      multiply_four_rows<v>(k, a, b + j, b_step, c + j, c_step, accumulate);
    };
    switch ((n - j) / lanes) {
      case 1:
        columns(std::integral_constant<int, 1>());
        break;
      case 2:
        columns(std::integral_constant<int, 2>());
        break;
      case 3:
        columns(std::integral_constant<int, 3>());
        break;
      default:
        columns(std::integral_constant<int, 4>());
    }
  }
}

// A block of 16 x 16 turned in registers: step w swaps, between rows w apart, the lanes whose
// indices differ in bit w.
inline void transpose_block(Lanes (&row)[lanes]) {
  for (int w = 1; w < lanes; w *= 2) {
    LaneIndices first, second;  // into the concatenation of two rows
    for (int l = 0; l < lanes; ++l) {
      first[l] = l & w ? lanes + l - w : l;
      second[l] = l & w ? lanes + l : l + w;
    }
    for (int r = 0; r < lanes; ++r)
      if (!(r & w)) {
        const Lanes a = row[r], b = row[r + w];
        row[r] = __builtin_shuffle(a, b, first);
        row[r + w] = __builtin_shuffle(a, b, second);
      }
  }
}

// y [n, m] = factor * x [m, n] transposed; m and n multiples of 16.
inline void transpose(int64_t m, int64_t n, const float* x, int64_t x_step, float factor, float* y,
                      int64_t y_step) {
  for (int64_t i = 0; i < m; i += lanes)
    for (int64_t j = 0; j < n; j += lanes) {
      Lanes row[lanes];
      for (int r = 0; r < lanes; ++r)
        row[r] = *reinterpret_cast<const Lanes*>(x + (i + r) * x_step + j) * factor;
      transpose_block(row);
      for (int r = 0; r < lanes; ++r) *reinterpret_cast<Lanes*>(y + (j + r) * y_step + i) = row[r];
    }
}

}  // namespace lockstep
