// A product in tiles (Goto and van de Geijn, "Anatomy of High-Performance Matrix
// Multiplication", 2008, section 4). b is packed a slab of columns at a time, while the slab before
// it is multiplied; threads take tiles of the result on demand, since cores of one machine are
// seldom equally quick. Read next: gemm.cpp.
#include "core/cpu/product.h"

namespace lockstep {

namespace {

// Of the inner dimension at a time. A panel of b of so many rows comes from the second-level cache
// for a tile's first rows, and from the first-level cache for the others.
constexpr int64_t depth = 192;
// A tile, its part of a and its panels of b: 0.6 MB, for a second-level cache of 1 or 2.
constexpr int64_t tile_rows = 128;
constexpr int64_t small_rows = rows_per_piece;
constexpr int64_t a_row = depth + lanes, a_column = tile_rows + lanes;  // not powers of two apart
constexpr int64_t slab_floats = int64_t{2} << 20;

// The rows of a product: large tiles first, small ones last, so that no thread waits long.
class RowTiles {
 public:
  explicit RowTiles(int64_t rows)
      : rows_(rows),
        large_(rows * 3 / 4 / tile_rows),
        small_(pieces(rows - large_ * tile_rows, small_rows)) {}
  int64_t count() const { return large_ + small_; }
  int64_t begin(int64_t i) const {
    return std::min(i, large_) * tile_rows + std::max<int64_t>(i - large_, 0) * small_rows;
  }
  int64_t end(int64_t i) const { return std::min(rows_, begin(i + 1)); }

 private:
  int64_t rows_, large_, small_;
};

// Columns [first, first + columns) of b, packed: for every `depth` rows their panels of
// block_columns one after the other.
struct Slab {
  int64_t first, columns;
  float* data;

  int64_t panels() const { return pieces(columns, block_columns); }
  float* panel(int64_t row, int64_t rows, int64_t i) const {
    return data + row * panels() * block_columns + i * rows * block_columns;
  }
  void pack(const Product& p, int64_t panel_index) const {
    const int64_t column = panel_index * block_columns;
    for (int64_t row = 0; row < p.k; row += depth) {
      const int64_t rows = std::min(depth, p.k - row);
      pack_columns(p.b, row, rows, first + column, std::min(block_columns, columns - column),
                   panel(row, rows, panel_index));
    }
  }
};

// Rows [row, row + m) and columns [p, p + k) of a, copied by rows or by columns as they are in a,
// with rows of zeros up to a full block.
void copy_part(const Operand& a, int64_t row, int64_t m, int64_t p, int64_t k, float* out) {
  const int64_t padded = round_up(m, block_rows);
  if (a.by_rows()) {
    for (int64_t i = 0; i < m; ++i) convert(a.at(row + i, p), out + i * a_row, k);
    for (int64_t i = m; i < padded; ++i) std::fill_n(out + i * a_row, k, 0.0f);
  } else {
    for (int64_t j = 0; j < k; ++j, out += a_column) {
      convert(a.at(row, p + j), out, m);
      std::fill(out + m, out + padded, 0.0f);
    }
  }
}

// Asks for what copy_part() will read.
void expect_part(const Operand& a, int64_t row, int64_t m, int64_t p, int64_t k, Ahead& ahead) {
  if (a.by_rows())
    ahead.add(a.at(row, p), a.row_stride, m, k);
  else
    ahead.add(a.at(row, p), a.column_stride, k, m);
}

// A tile of the product: rows [begin, end) and the slab's columns from `first` on, at most
// tile_columns.
void multiply_tile(const Product& product, const Slab& slab, int64_t begin, int64_t end,
                   int64_t first, float* part, float* sums) {
  const int64_t rows = end - begin, columns = std::min(tile_columns, slab.columns - first);
  Ahead ahead;
  for (int64_t p = 0; p < product.k; p += depth) {
    const int64_t k = std::min(depth, product.k - p), left = product.k - p - k;
    copy_part(product.a, begin, rows, p, k, part);
    ahead.start();
    if (left > 0)
      expect_part(product.a, begin, rows, p + k, std::min(depth, left), ahead);
    else
      product.finish.expect(ahead, begin, rows, slab.first + first, columns);
    for (int64_t j = 0; j < columns; j += block_columns) {
      const float* b = slab.panel(p, k, (first + j) / block_columns);
      for (int64_t i = 0; i < rows; i += block_rows) {
        float* c = sums + i * tile_columns + j;
        if (product.a.by_rows())
          multiply_block<a_row, 1>(k, part + i * a_row, b, c, tile_columns, p > 0);
        else
          multiply_block<1, a_column>(k, part + i, b, c, tile_columns, p > 0);
        ahead.some(1);
      }
    }
  }
  for (int64_t i = 0; i < rows; ++i)
    product.finish.run(begin + i, slab.first + first, columns, sums + i * tile_columns);
}

// Columns of b that are packed at once: as many as fit, but so many that copying a for each slab is
// a small part of the work.
int64_t slab_columns(int64_t n, int64_t k) {
  const int64_t fit = slab_floats / k / tile_columns * tile_columns;
  return std::min(round_up(n, block_columns), std::max(fit, 2 * block_columns));
}

}  // namespace

void multiply(const Product& product) {
  const int64_t width = slab_columns(product.n, product.k), slabs = pieces(product.n, width);
  const Scratch<float> packed(std::min<int64_t>(slabs, 2) * width * product.k);
  const ThreadRows part(1, std::max(round_up(tile_rows, block_rows) * a_row, depth * a_column));
  const ThreadRows sums(1, round_up(tile_rows, block_rows) * tile_columns);
  const RowTiles row_tiles(product.m);
  const auto slab = [&](int64_t i) -> Slab {
    return {i * width, std::min(width, product.n - i * width),
            packed.data() + i % 2 * width * product.k};
  };
  // Round i packs slab i and multiplies slab i - 1.
  for (int64_t i = 0; i <= slabs; ++i) {
    const int64_t packs = i < slabs ? slab(i).panels() : 0;
    const int64_t across = i > 0 ? pieces(slab(i - 1).columns, tile_columns) : 0;
    parallel_on_demand(packs + row_tiles.count() * across, [&](int64_t task) {
      if (task < packs) return slab(i).pack(product, task);
      const int64_t down = (task - packs) / across, along = (task - packs) % across;
      multiply_tile(product, slab(i - 1), row_tiles.begin(down), row_tiles.end(down),
                    along * tile_columns, part[0], sums[0]);
    });
  }
}

}  // namespace lockstep
