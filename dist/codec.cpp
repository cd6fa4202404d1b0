// The table of codecs, and the cells of those whose size is fixed. Read next: codecs/.
#include "dist/codec.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "core/parallel.h"
#include "dist/buckets.h"

namespace lockstep {

// A codec is one file in codecs/ that defines its `make`, and one row here.
using MakeCodec = std::unique_ptr<Codec>(const CodecOptions&);
MakeCodec make_none, make_bf16;

static const CodecEntry kCodecs[] = {
    {"none", "fp32 as it is", make_none},
    {"bf16", "rounded to bf16: half the bytes", make_bf16},
};

std::span<const CodecEntry> codec_table() {
  return kCodecs;
}

std::unique_ptr<Codec> make_codec(const std::string& name, const CodecOptions& options) {
  std::vector<const char*> names;
  for (const CodecEntry& entry : kCodecs) {
    if (name == entry.name) return entry.make(options);
    names.push_back(entry.name);
  }
  fail(Exit::config, "[codec] no codec \"{}\"; there are {}", name, fmt::join(names, ", "));
}

namespace {

constexpr size_t aligned(size_t bytes) {
  return (bytes + 15) / 16 * 16;
}

int64_t size_of_cell(const CodecRun& run, int64_t cell) {
  return std::min(cell_size, run.elements - cell * cell_size);
}

}  // namespace

size_t CellCodec::capacity(const CodecRun& run) const {
  const int64_t whole = run.elements / cell_size, left = run.elements % cell_size;
  return whole * aligned(cell_bytes(cell_size)) + (left > 0 ? aligned(cell_bytes(left)) : 0);
}

// The rest is what a receiver lacks: it is taken from the decoded cell, not from what the encoder
// knows, so no rounding can stand between the two.
size_t CellCodec::encode(const CodecRun& run, const float* x, std::byte* wire, float* rest) const {
  const size_t stride = aligned(cell_bytes(cell_size));
  parallel_for(cell_count(run.elements), [&](int64_t cell) {
    const int64_t begin = cell * cell_size, n = size_of_cell(run, cell);
    std::byte* at = wire + cell * stride;
    const size_t used = cell_bytes(n);
    std::memset(at + used, 0, aligned(used) - used);
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
  unpack(wire + cell * aligned(cell_bytes(cell_size)), size_of_cell(run, cell), out);
}

}  // namespace lockstep
