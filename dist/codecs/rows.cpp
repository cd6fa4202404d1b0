// Codec `rows`, lossless: only rows that are not zero travel, for embedding tables of which a step
// touches few. A row that crosses from one cell into the next has a segment in each, and segments
// travel by themselves. "Zero" means that all bits are: -0.0 travels.
//
// Wire: a table with one uint32 per cell, then the cells that are not all zero, each at 16 x its
// entry in the table (0: all zero). A cell: a bitmap with one bit per segment, then the elements of
// the segments whose bit is set; both padded to 16 bytes.
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "core/parallel.h"
#include "dist/buckets.h"
#include "dist/codec.h"

namespace lockstep {

namespace {

// body(segment, begin, end) for what a cell holds of each row: elements [begin, end) of the cell.
template <class Body>
void for_segments(const CodecRun& run, int64_t cell, Body&& body) {
  const int64_t n = run.cell_elements(cell), first = run.first + cell * cell_size;
  int64_t begin = 0, end = std::min(n, run.row - first % run.row);
  for (int64_t segment = 0; begin < n; ++segment) {
    body(segment, begin, end);
    begin = end;
    end = std::min(n, end + run.row);
  }
}

size_t bitmap_bytes(const CodecRun& run, int64_t cell) {
  const int64_t first = run.first + cell * cell_size, last = first + run.cell_elements(cell) - 1;
  const int64_t segments = last / run.row - first / run.row + 1;
  return wire_aligned((segments + 7) / 8);
}

size_t table_bytes(const CodecRun& run) {
  return wire_aligned(cell_count(run.elements) * sizeof(uint32_t));
}

bool any_bit(const float* x, int64_t n) {
  uint32_t seen = 0;
#pragma omp simd reduction(| : seen)
  for (int64_t i = 0; i < n; ++i) seen |= std::bit_cast<uint32_t>(x[i]);
  return seen != 0;
}

// Bytes of the cell x on the wire, 0 if it is all zero.
size_t packed_bytes(const CodecRun& run, int64_t cell, const float* x) {
  int64_t elements = 0;
  for_segments(run, cell, [&](int64_t, int64_t begin, int64_t end) {
    if (any_bit(x + begin, end - begin)) elements += end - begin;
  });
  return elements > 0 ? bitmap_bytes(run, cell) + wire_aligned(elements * sizeof(float)) : 0;
}

void pack(const CodecRun& run, int64_t cell, const float* x, std::byte* wire) {
  std::byte* at = wire + bitmap_bytes(run, cell);
  std::memset(wire, 0, at - wire);
  for_segments(run, cell, [&](int64_t segment, int64_t begin, int64_t end) {
    if (!any_bit(x + begin, end - begin)) return;
    wire[segment / 8] |= std::byte{1} << segment % 8;
    std::memcpy(at, x + begin, (end - begin) * sizeof(float));
    at += (end - begin) * sizeof(float);
  });
  std::memset(at, 0, wire_aligned(at - wire) - (at - wire));
}

class Rows final : public Codec {
 public:
  bool lossless() const override { return true; }
  bool fixed_size() const override { return false; }

  size_t capacity(const CodecRun& run) const override {
    size_t bytes = table_bytes(run);
    for (int64_t cell = 0; cell < cell_count(run.elements); ++cell)
      bytes += bitmap_bytes(run, cell) + wire_aligned(run.cell_elements(cell) * sizeof(float));
    return bytes;
  }

  size_t encode(const CodecRun& run, const float* x, std::byte* wire, float* rest) const override {
    const int64_t cells = cell_count(run.elements);
    uint32_t* table = reinterpret_cast<uint32_t*>(wire);  // first of sizes, then of places; / 16
    std::memset(table + cells, 0, table_bytes(run) - cells * sizeof(uint32_t));
    parallel_for(cells, [&](int64_t cell) {
      table[cell] = static_cast<uint32_t>(packed_bytes(run, cell, x + cell * cell_size) / 16);
    });
    size_t end = table_bytes(run) / 16;
    for (int64_t cell = 0; cell < cells; ++cell) {
      if (table[cell] > 0) end += std::exchange(table[cell], static_cast<uint32_t>(end));
    }
    parallel_for(cells, [&](int64_t cell) {
      if (table[cell] > 0) pack(run, cell, x + cell * cell_size, wire + size_t{16} * table[cell]);
      if (rest) std::fill_n(rest + cell * cell_size, run.cell_elements(cell), 0.0f);
    });
    return end * 16;
  }

  void decode_cell(const CodecRun& run, const std::byte* wire, int64_t cell,
                   float* out) const override {
    const uint32_t place = reinterpret_cast<const uint32_t*>(wire)[cell];
    if (place == 0) {
      std::fill_n(out, run.cell_elements(cell), 0.0f);
      return;
    }
    const std::byte* bitmap = wire + size_t{16} * place;
    const std::byte* at = bitmap + bitmap_bytes(run, cell);
    for_segments(run, cell, [&](int64_t segment, int64_t begin, int64_t end) {
      const size_t bytes = (end - begin) * sizeof(float);
      if (std::to_integer<int>(bitmap[segment / 8] >> segment % 8 & std::byte{1})) {
        std::memcpy(out + begin, at, bytes);
        at += bytes;
      } else {
        std::memset(out + begin, 0, bytes);
      }
    });
  }
};

}  // namespace

std::unique_ptr<Codec> make_rows(const CodecOptions&) {
  return std::make_unique<Rows>();
}

}  // namespace lockstep
