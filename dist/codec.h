// Codecs: how gradients are written on the wire, and what a lossy one leaves behind. Pure functions
// of consecutive cells of one parameter; who sends which cells where, and who keeps the residual
// from one step to the next (error feedback), is the reducer's matter. Sums are never taken here:
// decoding gives fp32. Read next: codecs/bf16.cpp, the shortest codec that loses something.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.h"

namespace lockstep {

// Consecutive elements of one parameter, from the start of a cell (cell_size in core/backend.h).
// Only the parameter's last cell may be short.
struct CodecRun {
  int64_t elements;
  int64_t first;  // index of the first element in the parameter, a multiple of cell_size
  int64_t row;    // elements per row of the parameter: its last dimension

  int64_t cell_elements(int64_t cell) const {
    return std::min(cell_size, elements - cell * cell_size);
  }
};

// Runs and cells start at multiples of 16 bytes of the wire.
constexpr size_t wire_aligned(size_t bytes) {
  return (bytes + 15) / 16 * 16;
}

class Codec {
 public:
  virtual ~Codec() = default;

  // Decoding gives the bits that were encoded.
  virtual bool lossless() const = 0;

  // The most bytes that a run needs on the wire, a multiple of 16, so that runs can follow each
  // other. Every codec except `rows` uses exactly as many.
  virtual size_t capacity(const CodecRun& run) const = 0;

  // Writes x [run.elements] to `wire`, which is 16-byte aligned, and returns the bytes used, a
  // multiple of 16. `rest` [run.elements], if it is not null, gets x - decoded, rounded to fp32:
  // what was not sent. It may be x itself, but not overlap it otherwise.
  //
  // Cells are encoded independently of each other, on this rank's threads, whose number changes no
  // bit. A cell with a NaN or an infinity decodes to one with a NaN or an infinity, so whoever
  // looks at the sum sees that the step must be skipped; `rest` is worthless then.
  virtual size_t encode(const CodecRun& run, const float* x, std::byte* wire,
                        float* rest) const = 0;

  // The fp32 elements of a run, if its encoding is just that: nothing to decode. Such a codec works
  // on devices as well, the others read and write on the host.
  virtual const float* plain([[maybe_unused]] const std::byte* wire) const { return nullptr; }

  // Every run takes its capacity, whatever is in it.
  virtual bool fixed_size() const = 0;

  // Overwrites `out` with the cell-th cell of the run: cell_size elements, or what the run's last
  // cell has.
  virtual void decode_cell(const CodecRun& run, const std::byte* wire, int64_t cell,
                           float* out) const = 0;
};

// A codec whose cells take as many bytes whatever is in them, so that each has its place on the
// wire. What remains to be written is what happens to one cell of n elements.
class CellCodec : public Codec {
 public:
  bool fixed_size() const final { return true; }
  size_t capacity(const CodecRun& run) const final;
  size_t encode(const CodecRun& run, const float* x, std::byte* wire, float* rest) const final;
  void decode_cell(const CodecRun& run, const std::byte* wire, int64_t cell,
                   float* out) const final;

 private:
  // Any number; it is rounded up to a multiple of 16, and what lies beyond is zero.
  virtual size_t cell_bytes(int64_t n) const = 0;
  virtual void pack(const float* x, int64_t n, std::byte* wire) const = 0;
  virtual void unpack(const std::byte* wire, int64_t n, float* out) const = 0;
};

struct CodecOptions {
  double ratio = 0.01;  // topk: share of each cell's elements that is sent
};

struct CodecEntry {
  const char* name;
  const char* help;
  std::unique_ptr<Codec> (*make)(const CodecOptions& options);
};

std::span<const CodecEntry> codec_table();
std::vector<std::string_view> codec_names();
std::string codec_summary();  // one line: every codec with its help

// Exit::config if there is no such codec, or an option that it uses has no meaning.
std::unique_ptr<Codec> make_codec(const std::string& name, const CodecOptions& options);

}  // namespace lockstep
