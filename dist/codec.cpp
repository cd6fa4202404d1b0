// The table of codecs, and the cells of those whose size is fixed. Read next: codecs/.
#include "dist/codec.h"

#include <cstring>
#include <vector>

#include "core/error.h"
#include "core/parallel.h"
#include "dist/buckets.h"

namespace lockstep {

// A codec is one file in codecs/ that defines its `make`, and one row here.
using MakeCodec = std::unique_ptr<Codec>(const CodecOptions&);
MakeCodec make_none, make_bf16, make_int8, make_topk, make_sign, make_rows;

static const CodecEntry kCodecs[] = {
    {"none", "fp32 as it is", make_none},
    {"bf16", "rounded to bf16: half the bytes", make_bf16},
    {"int8", "rounded to 255 steps between the extremes of a cell: a quarter", make_int8},
    {"topk", "the elements of largest magnitude, `ratio` of each cell", make_topk},
    {"rows", "lossless: the rows that are not zero, for embeddings", make_rows},
    {"sign", "one bit per element, times the cell's mean magnitude: 1/31", make_sign},
};

std::span<const CodecEntry> codec_table() {
  return kCodecs;
}

std::vector<std::string_view> codec_names() {
  std::vector<std::string_view> names;
  for (const CodecEntry& entry : kCodecs) names.push_back(entry.name);
  return names;
}

std::string codec_summary() {
  std::string help;
  for (const CodecEntry& entry : kCodecs)
    help += fmt::format("{}{}: {}", help.empty() ? "" : "; ", entry.name, entry.help);
  return help;
}

std::unique_ptr<Codec> make_codec(const std::string& name, const CodecOptions& options) {
  for (const CodecEntry& entry : kCodecs)
    if (name == entry.name) return entry.make(options);
  fail(Exit::config, "[codec] no codec \"{}\"; there are {}", name, fmt::join(codec_names(), ", "));
}

size_t CellCodec::capacity(const CodecRun& run) const {
  const int64_t whole = run.elements / cell_size, left = run.elements % cell_size;
  return whole * wire_aligned(cell_bytes(cell_size)) +
         (left > 0 ? wire_aligned(cell_bytes(left)) : 0);
}

// The rest is what a receiver lacks: it is taken from the decoded cell, not from what the encoder
// knows, so no rounding can stand between the two.
size_t CellCodec::encode(const CodecRun& run, const float* x, std::byte* wire, float* rest) const {
  const size_t stride = wire_aligned(cell_bytes(cell_size));
  parallel_for(cell_count(run.elements), [&](int64_t cell) {
    const int64_t begin = cell * cell_size, n = run.cell_elements(cell);
    std::byte* at = wire + cell * stride;
    const size_t used = cell_bytes(n);
    std::memset(at + used, 0, wire_aligned(used) - used);
    pack(x + begin, n, at);
    if (!rest) return;
    alignas(64) float sent[cell_size];
    unpack(at, n, sent);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) rest[begin + i] = x[begin + i] - sent[i];
  });
  return capacity(run);
}

void CellCodec::decode_cell(const CodecRun& run, const std::byte* wire, int64_t cell,
                            float* out) const {
  unpack(wire + cell * wire_aligned(cell_bytes(cell_size)), run.cell_elements(cell), out);
}

}  // namespace lockstep
