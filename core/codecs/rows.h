// Codec `rows`, lossless: only rows that are not zero travel, for embedding tables of which a step
// touches few. A row that crosses from one cell into the next has a segment in each, and segments
// travel by themselves. "Zero" means that all bits are: -0.0 travels. The one codec whose cells
// take as many bytes as they need, so its encoders walk the whole run: cpu/codecs.cpp by segments,
// cuda/codecs.cu by elements.
//
// Wire: a table with one uint32 per cell, and in the message's tail the cells that are not all
// zero, each 16 x its entry behind the table's begin (0: all zero). A cell: a bitmap with one bit
// per segment, then the elements of the segments whose bit is set; both padded with zeros to 16
// bytes.
#pragma once

#include "core/codecs/cell.h"

namespace lockstep::codec {

struct Rows {
  static constexpr const char *name = "rows",
                              *help = "lossless: the rows that are not zero, for embeddings";
  static constexpr bool lossless = true;

  explicit Rows(const CodecOptions&) {}

  static size_t table_bytes(const CodecRun& run) {
    return wire_aligned(run.cells() * sizeof(uint32_t));
  }
  LOCKSTEP_HD static int64_t segments(const CodecRun& run, int64_t cell) {
    const int64_t first = run.first + cell * cell_size, last = first + run.cell_elements(cell) - 1;
    return last / run.row - first / run.row + 1;
  }
  LOCKSTEP_HD static size_t bitmap_bytes(const CodecRun& run, int64_t cell) {
    return wire_aligned((segments(run, cell) + 7) / 8);
  }
  // Of the cell's i-th element.
  LOCKSTEP_HD static int64_t segment(const CodecRun& run, int64_t cell, int64_t i) {
    const int64_t first = run.first + cell * cell_size;
    return (first + i) / run.row - first / run.row;
  }
  // Of a cell of which this many elements travel.
  LOCKSTEP_HD static size_t packed_bytes(const CodecRun& run, int64_t cell, int64_t elements) {
    return elements > 0 ? bitmap_bytes(run, cell) + wire_aligned(elements * sizeof(float)) : 0;
  }
};

}  // namespace lockstep::codec
