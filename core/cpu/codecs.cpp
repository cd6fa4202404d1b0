// Runs of cells through a codec, a cell per thread at a time. Cells are independent of each other,
// so the number of threads changes no bit. Read next: ../cuda/codecs.cu.
#include "core/codecs.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/cpu/cpu_backend.h"
#include "core/cpu/team.h"
#include "core/parallel.h"

namespace lockstep {

namespace {

using codec::Rows;

// ---- codecs whose cells take as many bytes whatever is in them

template <class C>
size_t place_bytes_of(const C& codec, const CodecRun& run) {
  const int64_t whole = run.elements / cell_size, left = run.elements % cell_size;
  return whole * wire_aligned(codec.bytes(cell_size)) +
         (left > 0 ? wire_aligned(codec.bytes(left)) : 0);
}

template <class C>
size_t most_in_tail(const C&, const CodecRun&) {
  return 0;
}

// The rest is what a receiver lacks: it is taken from the decoded cell, not from what the encoder
// knows, so no rounding can stand between the two.
template <class C>
void encode_run(const C& codec, const CodecRun& run, const float* x, std::byte* wire,
                const WireTail&, float* rest) {
  const size_t stride = wire_aligned(codec.bytes(cell_size));
  parallel_for(run.cells(), [&](int64_t cell) {
    const int64_t begin = cell * cell_size, n = run.cell_elements(cell);
    std::byte* at = wire + cell * stride;
    const size_t used = codec.bytes(n);
    std::memset(at + used, 0, wire_aligned(used) - used);
    alignas(64) typename C::Local local;
    codec.pack(OneThread(), x + begin, n, at, local);
    if (!rest) return;
    alignas(64) float sent[cell_size];
    codec.unpack(OneThread(), at, n, sent);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) rest[begin + i] = x[begin + i] - sent[i];
  });
}

template <class C>
void decode_one(const C& codec, const CodecRun& run, const std::byte* wire, int64_t cell,
                float* out) {
  codec.unpack(OneThread(), wire + cell * wire_aligned(codec.bytes(cell_size)),
               run.cell_elements(cell), out);
}

// ---- rows

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

bool any_bit(const float* x, int64_t n) {
  uint32_t seen = 0;
#pragma omp simd reduction(| : seen)
  for (int64_t i = 0; i < n; ++i) seen |= codec::bits_of(x[i]);
  return seen != 0;
}

size_t packed_bytes(const CodecRun& run, int64_t cell, const float* x) {
  int64_t elements = 0;
  for_segments(run, cell, [&](int64_t, int64_t begin, int64_t end) {
    if (any_bit(x + begin, end - begin)) elements += end - begin;
  });
  return Rows::packed_bytes(run, cell, elements);
}

void pack_rows(const CodecRun& run, int64_t cell, const float* x, std::byte* wire) {
  std::byte* at = wire + Rows::bitmap_bytes(run, cell);
  std::memset(wire, 0, at - wire);
  for_segments(run, cell, [&](int64_t segment, int64_t begin, int64_t end) {
    if (!any_bit(x + begin, end - begin)) return;
    wire[segment / 8] |= std::byte{1} << segment % 8;
    std::memcpy(at, x + begin, (end - begin) * sizeof(float));
    at += (end - begin) * sizeof(float);
  });
  std::memset(at, 0, wire_aligned(at - wire) - (at - wire));
}

size_t place_bytes_of(const Rows&, const CodecRun& run) {
  return Rows::table_bytes(run);
}
size_t most_in_tail(const Rows&, const CodecRun& run) {
  size_t bytes = 0;
  for (int64_t cell = 0; cell < run.cells(); ++cell)
    bytes += Rows::packed_bytes(run, cell, run.cell_elements(cell));
  return bytes;
}

void encode_run(const Rows&, const CodecRun& run, const float* x, std::byte* wire,
                const WireTail& tail, float* rest) {
  const int64_t cells = run.cells();
  uint32_t* table = reinterpret_cast<uint32_t*>(wire);  // first of sizes, then of places; / 16
  std::memset(table + cells, 0, Rows::table_bytes(run) - cells * sizeof(uint32_t));
  parallel_for(cells, [&](int64_t cell) {
    table[cell] = static_cast<uint32_t>(packed_bytes(run, cell, x + cell * cell_size) / 16);
  });
  const size_t begin = (tail.base + *tail.used - wire) / 16;
  size_t end = begin;
  for (int64_t cell = 0; cell < cells; ++cell) {
    if (table[cell] > 0) end += std::exchange(table[cell], static_cast<uint32_t>(end));
  }
  *tail.used += 16 * (end - begin);
  parallel_for(cells, [&](int64_t cell) {
    if (table[cell] > 0)
      pack_rows(run, cell, x + cell * cell_size, wire + size_t{16} * table[cell]);
    if (rest) std::fill_n(rest + cell * cell_size, run.cell_elements(cell), 0.0f);
  });
}

void decode_one(const Rows&, const CodecRun& run, const std::byte* wire, int64_t cell, float* out) {
  const uint32_t place = reinterpret_cast<const uint32_t*>(wire)[cell];
  if (place == 0) {
    std::fill_n(out, run.cell_elements(cell), 0.0f);
    return;
  }
  const std::byte* bitmap = wire + size_t{16} * place;
  const std::byte* at = bitmap + Rows::bitmap_bytes(run, cell);
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

}  // namespace

size_t place_bytes(const CellCodec& codec, const CodecRun& run) {
  return std::visit([&](const auto& c) { return place_bytes_of(c, run); }, codec);
}

size_t capacity(const CellCodec& codec, const CodecRun& run) {
  return std::visit([&](const auto& c) { return place_bytes_of(c, run) + most_in_tail(c, run); },
                    codec);
}

void CpuBackend::encode(const CellCodec& codec, const CodecRun& run, const float* x,
                        std::byte* wire, const WireTail& tail, float* rest) {
  std::visit([&](const auto& c) { encode_run(c, run, x, wire, tail, rest); }, codec);
}

void CpuBackend::decode(const CellCodec& codec, const CodecRun& run, const std::byte* wire,
                        int64_t first, int64_t count, float* out) {
  std::visit(
      [&](const auto& c) {
        parallel_for(count,
                     [&](int64_t i) { decode_one(c, run, wire, first + i, out + i * cell_size); });
      },
      codec);
}

void CpuBackend::average(float decay, const float* past, float* x, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) x[i] = (past ? decay * past[i] : 0.0f) + (1.0f - decay) * x[i];
}

void CpuBackend::root_powers(const float* v, uint8_t* powers, int64_t n) {
  for (int64_t i = 0; i < n; ++i) powers[i] = codec::root_power(v[i]);
}

void CpuBackend::scale_by_powers(const uint8_t* powers, bool divide, float* x, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) x[i] *= codec::power(powers[i], divide);
}

}  // namespace lockstep
