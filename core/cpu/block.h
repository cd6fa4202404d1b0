// What our own matrix product is made of: a block of its sums held in registers, and both bf16
// factors copied into the order in which that block reads them, as fp32. Without a matrix unit that
// is the fastest known here: the instruction for dot products of bf16 pairs runs at half the rate
// of the fp32 multiply-add (88 and 178 GFLOP/s of a core, a Xeon with AVX-512), and not every
// processor has it. Products of bf16 are exact in fp32. Read next: product.h.
#pragma once

#include "core/cpu/rows.h"
#include "core/cpu/tile.h"

namespace lockstep {

#ifdef __AVX512F__  // 32 registers: 24 of sums, 3 of a row of b, and a's element
constexpr int64_t block_rows = 8, block_vectors = 3;
#else  // 16 registers of half the width
constexpr int64_t block_rows = 6, block_vectors = 1;
#endif
constexpr int64_t block_columns = block_vectors * lanes;

// c [block_rows, block_columns] (+)= a [.., k] b [k, block_columns]. Element (i, p) of a is at
// a[i * row_step + p * column_step]; rows of b follow each other.
template <int64_t row_step, int64_t column_step>
void multiply_block(int64_t k, const float* a, const float* b, float* c, int64_t c_step,
                    bool accumulate) {
  constexpr int64_t ahead = 4;  // rows of b, which comes from the second-level cache
  Lanes sum[block_rows][block_vectors];
#pragma GCC unroll 8
  for (auto& row : sum)
#pragma GCC unroll 4
    for (Lanes& s : row) s = Lanes{};
  for (int64_t p = 0; p < k; ++p, b += block_columns) {
    Lanes row[block_vectors];
#pragma GCC unroll 4
    for (int64_t j = 0; j < block_vectors; ++j) {
      __builtin_prefetch(b + ahead * block_columns + j * lanes);
      row[j] = *reinterpret_cast<const Lanes*>(b + j * lanes);
    }
#pragma GCC unroll 8
    for (int64_t i = 0; i < block_rows; ++i) {
      const float factor = a[i * row_step + p * column_step];
#pragma GCC unroll 4
      for (int64_t j = 0; j < block_vectors; ++j) sum[i][j] += factor * row[j];
    }
  }
#pragma GCC unroll 8
  for (int64_t i = 0; i < block_rows; ++i)
#pragma GCC unroll 4
    for (int64_t j = 0; j < block_vectors; ++j) {
      Lanes& out = *reinterpret_cast<Lanes*>(c + i * c_step + j * lanes);
      if (accumulate)
        out += sum[i][j];
      else
        out = sum[i][j];
    }
}

// A factor where it is stored: bf16, by rows or by columns (one of the strides is 1).
struct Operand {
  const bf16* data;
  int64_t row_stride, column_stride;

  bool by_rows() const { return column_stride == 1; }
  const bf16* at(int64_t row, int64_t column) const {
    return data + row * row_stride + column * column_stride;
  }
};

// out [k, block_columns] = rows [first_row, first_row + k) of b's columns [first, first + n), n at
// most block_columns, with zeros beside them.
inline void pack_columns(const Operand& b, int64_t first_row, int64_t k, int64_t first, int64_t n,
                         float* out) {
  if (b.by_rows()) {
    for (int64_t p = 0; p < k; ++p, out += block_columns) {
      convert(b.at(first_row + p, first), out, n);
      std::fill(out + n, out + block_columns, 0.0f);
    }
    return;
  }
  for (int64_t j = 0; j < block_columns; j += lanes)
    for (int64_t p = 0; p < k; p += lanes) {
      const int64_t rows = std::min(lanes, k - p);
      Lanes column[lanes] = {};
      for (int64_t c = 0; c < std::min(lanes, n - j); ++c)
        convert(b.at(first_row + p, first + j + c), reinterpret_cast<float*>(&column[c]), rows);
      transpose_block(column);
      for (int64_t r = 0; r < rows; ++r)
        *reinterpret_cast<Lanes*>(out + (p + r) * block_columns + j) = column[r];
    }
}

}  // namespace lockstep
