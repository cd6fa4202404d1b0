// Our own product of two bf16 matrices, tile by tile, and what becomes of each row of a tile. Read
// next: product.cpp.
#pragma once

#include <functional>

#include "core/cpu/block.h"

namespace lockstep {

constexpr int64_t tile_columns = 8 * block_columns;

struct Finish {
  // What becomes of x, columns [column, column + n) of a row of the product, n at most
  // tile_columns; x may be changed. Rows come in order within a tile, and rows_per_piece of them,
  // from a multiple of it on, are of one tile.
  std::function<void(int64_t row, int64_t column, int64_t n, float* x)> run;
  // Asks for what run() will read and write for `rows` rows.
  std::function<void(Ahead& ahead, int64_t row, int64_t rows, int64_t column, int64_t n)> expect;
};

// a [m, k] b [k, n], none of them 0.
struct Product {
  Operand a, b;
  int64_t m, n, k;
  const Finish& finish;
};

// Sums do not depend on the number of threads, nor on m or n.
void multiply(const Product& product);

}  // namespace lockstep
