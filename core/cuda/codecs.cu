// Codecs on the device: a block of 256 threads is the team of a cell. What is written is what the
// CPU would write, bit for bit: maxima and counts are exact, the one sum (of `sign`) is the same
// tree, and a rest is taken from the decoded cell after a barrier, so that no multiplication can
// fuse with its subtraction. Read next: core/codecs/topk.h, the one that works hardest.
//
// Bytes per element: encode reads 4 and writes the wire and, with a rest, 4 more, the least
// possible: what is read again lies in the block's 16 KB of L1 cache or shared memory. decode
// writes 4 and reads the wire. topk makes at most 31 passes over shared memory, 16 elements per
// thread and a fold of 8 barriers each, some 3000 to 6000 cycles for 16 KB: with 6 blocks on a
// multiprocessor that is about the rate at which memory delivers cells.
#include "core/codecs.h"

#include "core/cuda/kernels.h"
#include "core/cuda/team.h"

namespace lockstep::cuda {

namespace {

using codec::Rows;

// Launch: a block per cell.
template <class C>
__global__ void __launch_bounds__(team_size)
    encode_kernel(C codec, CodecRun run, const float* x, std::byte* wire, float* rest) {
  SHARED_ARRAY(typename C::Local, local, [1]);
  SHARED_ARRAY(float, sent, [cell_size]);
  const Block team;
  const int64_t cell = blockIdx.x, begin = cell * cell_size, n = run.cell_elements(cell);
  std::byte* at = wire + cell * wire_aligned(codec.bytes(cell_size));
  const size_t used = codec.bytes(n);
  team.each(static_cast<int64_t>(wire_aligned(used) - used),
            [=](int64_t i) { at[used + i] = std::byte{0}; });
  codec.pack(team, x + begin, n, at, local[0]);
  if (!rest) return;
  team.sync();
  codec.unpack(team, at, n, sent);
  team.sync();
  float* decoded = sent;
  team.each(n, [=](int64_t i) { rest[begin + i] = x[begin + i] - decoded[i]; });
}

// Launch: a block per cell.
template <class C>
__global__ void __launch_bounds__(team_size)
    decode_kernel(C codec, CodecRun run, const std::byte* wire, int64_t first, float* out) {
  const int64_t cell = first + blockIdx.x;
  codec.unpack(Block(), wire + cell * wire_aligned(codec.bytes(cell_size)), run.cell_elements(cell),
               out + blockIdx.x * cell_size);
}

// ---- rows: sizes, places, cells. One bit per segment; a cell has at most 4096.

constexpr int bitmap_words = cell_size / 32;

// The bitmap of a cell in shared memory: set bits are atomic, so their order changes nothing.
__device__ void mark_segments(const Block& team, const CodecRun& run, int64_t cell, const float* x,
                              uint32_t* bitmap) {
  team.each(bitmap_words, [=](int64_t i) { bitmap[i] = 0; });
  team.sync();
  team.each(run.cell_elements(cell), [=](int64_t i) {
    if (codec::bits_of(x[i]) == 0) return;
    const int64_t segment = Rows::segment(run, cell, i);
    atomicOr(bitmap + segment / 32, 1u << segment % 32);
  });
  team.sync();
}

__device__ bool is_marked(const uint32_t* bitmap, int64_t segment) {
  return bitmap[segment / 32] >> segment % 32 & 1u;
}

// table [cell] = bytes / 16. Launch: a block per cell.
__global__ void __launch_bounds__(team_size)
    rows_size_kernel(CodecRun run, const float* x, uint32_t* table) {
  SHARED_ARRAY(uint32_t, bitmap, [bitmap_words]);
  const Block team;
  const int64_t cell = blockIdx.x;
  uint32_t* marked = bitmap;
  mark_segments(team, run, cell, x + cell * cell_size, marked);
  const int32_t elements = team.count(run.cell_elements(cell), [=](int64_t i) {
    return is_marked(marked, Rows::segment(run, cell, i));
  });
  team.each(1, [=](int64_t) {
    table[cell] = static_cast<uint32_t>(Rows::packed_bytes(run, cell, elements) / 16);
  });
}

// Sizes become places in the tail, which begins `tail` bytes from the table and has its first
// `used` in use. Launch: one block.
__global__ void __launch_bounds__(team_size)
    rows_place_kernel(uint32_t* table, int64_t cells, int64_t padded, int64_t tail,
                      uint64_t* used) {
  const Block team;
  const uint64_t before_all = *used;  // read by all before one writes it: scan() syncs
  const auto first = static_cast<uint32_t>((tail + static_cast<int64_t>(before_all)) / 16);
  const uint32_t all = team.scan(
      cells, [=](int64_t i) { return table[i]; },
      [=](int64_t i, uint32_t before) { table[i] = first + before; });
  team.each(1, [=](int64_t) { *used = before_all + uint64_t{16} * all; });
  team.each(padded - cells, [=](int64_t i) { table[cells + i] = 0; });
}

// Launch: a block per cell.
__global__ void __launch_bounds__(team_size)
    rows_pack_kernel(CodecRun run, const float* x, std::byte* wire, float* rest) {
  SHARED_ARRAY(uint32_t, bitmap, [bitmap_words]);
  const Block team;
  const int64_t cell = blockIdx.x, n = run.cell_elements(cell);
  const uint32_t place = reinterpret_cast<const uint32_t*>(wire)[cell];
  x += cell * cell_size;
  if (place > 0) {
    uint32_t* marked = bitmap;
    mark_segments(team, run, cell, x, marked);
    uint32_t* words = reinterpret_cast<uint32_t*>(wire + size_t{16} * place);
    const auto bitmap_size = static_cast<int64_t>(Rows::bitmap_bytes(run, cell) / 4);
    team.each(bitmap_size, [=](int64_t i) { words[i] = marked[i]; });
    uint32_t* values = words + bitmap_size;
    const uint32_t count = team.scan(
        n, [=](int64_t i) -> uint32_t { return is_marked(marked, Rows::segment(run, cell, i)); },
        [=](int64_t i, uint32_t before) { values[before] = codec::bits_of(x[i]); });
    team.each(-count % 4, [=](int64_t i) { values[count + i] = 0; });
  }
  if (!rest) return;
  team.sync();  // it may be x
  rest += cell * cell_size;
  team.each(n, [=](int64_t i) { rest[i] = 0.0f; });
}

// Launch: a block per cell.
__global__ void __launch_bounds__(team_size)
    rows_decode_kernel(CodecRun run, const std::byte* wire, int64_t first, float* out) {
  const Block team;
  const int64_t cell = first + blockIdx.x, n = run.cell_elements(cell);
  const uint32_t place = reinterpret_cast<const uint32_t*>(wire)[cell];
  out += blockIdx.x * cell_size;
  team.each(n, [=](int64_t i) { out[i] = 0.0f; });
  if (place == 0) return;
  const uint32_t* words = reinterpret_cast<const uint32_t*>(wire + size_t{16} * place);
  const auto* values =
      reinterpret_cast<const float*>(words + Rows::bitmap_bytes(run, cell) / sizeof *words);
  team.sync();
  team.scan(
      n, [=](int64_t i) -> uint32_t { return is_marked(words, Rows::segment(run, cell, i)); },
      [=](int64_t i, uint32_t before) { out[i] = values[before]; });
}

template <class C>
void encode_run(Stream s, const C& codec, const CodecRun& run, const float* x, std::byte* wire,
                const WireTail&, float* rest) {
  const dim3 blocks(static_cast<unsigned>(run.cells()));
  launch(encode_kernel<C>, blocks, dim3(team_size), 0, s, codec, run, x, wire, rest);
}

// Only the data know how long the wire is, and the host need not: the tail's end is on the device.
void encode_run(Stream s, const Rows&, const CodecRun& run, const float* x, std::byte* wire,
                const WireTail& tail, float* rest) {
  const dim3 blocks(static_cast<unsigned>(run.cells())), threads(team_size);
  auto* table = reinterpret_cast<uint32_t*>(wire);
  const auto padded = static_cast<int64_t>(Rows::table_bytes(run) / sizeof *table);
  launch(rows_size_kernel, blocks, threads, 0, s, run, x, table);
  launch(rows_place_kernel, dim3(1), threads, 0, s, table, run.cells(), padded, tail.base - wire,
         tail.used);
  launch(rows_pack_kernel, blocks, threads, 0, s, run, x, wire, rest);
}

template <class C>
void decode_run(Stream s, const C& codec, const CodecRun& run, const std::byte* wire, int64_t first,
                dim3 blocks, float* out) {
  launch(decode_kernel<C>, blocks, dim3(team_size), 0, s, codec, run, wire, first, out);
}

void decode_run(Stream s, const Rows&, const CodecRun& run, const std::byte* wire, int64_t first,
                dim3 blocks, float* out) {
  launch(rows_decode_kernel, blocks, dim3(team_size), 0, s, run, wire, first, out);
}

// ---- what codecs see in place of a gradient

// f(i) for i in [0, n), grid-stride.
template <class F>
__device__ void each_in_grid(int64_t n, F&& f) {
  const int64_t step = int64_t{gridDim.x} * team_size;
  for (int64_t i = int64_t{blockIdx.x} * team_size + threadIdx.x; i < n; i += step) f(i);
}

// Bytes per element: the least possible (12, or 8 without a past).
__global__ void __launch_bounds__(team_size)
    average_kernel(float decay, const float* past, float* x, int64_t n) {
  each_in_grid(n,
               [=](int64_t i) { x[i] = (past ? decay * past[i] : 0.0f) + (1.0f - decay) * x[i]; });
}

// Bytes per element: the least possible (5).
__global__ void __launch_bounds__(team_size)
    root_powers_kernel(const float* v, uint8_t* powers, int64_t n) {
  each_in_grid(n, [=](int64_t i) { powers[i] = codec::root_power(v[i]); });
}

// Bytes per element: the least possible (9).
__global__ void __launch_bounds__(team_size)
    scale_kernel(const uint8_t* powers, bool divide, float* x, int64_t n) {
  each_in_grid(n, [=](int64_t i) { x[i] *= codec::power(powers[i], divide); });
}

}  // namespace

void encode(Stream s, const CellCodec& codec, const CodecRun& run, const float* x, std::byte* wire,
            const WireTail& tail, float* rest) {
  std::visit([&](const auto& c) { encode_run(s, c, run, x, wire, tail, rest); }, codec);
}

void decode(Stream s, const CellCodec& codec, const CodecRun& run, const std::byte* wire,
            int64_t first, int64_t count, float* out) {
  const dim3 blocks(static_cast<unsigned>(count));
  std::visit([&](const auto& c) { decode_run(s, c, run, wire, first, blocks, out); }, codec);
}

void average(Stream s, float decay, const float* past, float* x, int64_t n) {
  launch(average_kernel, blocks_for(n, team_size), dim3(team_size), 0, s, decay, past, x, n);
}

void root_powers(Stream s, const float* v, uint8_t* powers, int64_t n) {
  launch(root_powers_kernel, blocks_for(n, team_size), dim3(team_size), 0, s, v, powers, n);
}

void scale_by_powers(Stream s, const uint8_t* powers, bool divide, float* x, int64_t n) {
  launch(scale_kernel, blocks_for(n, team_size), dim3(team_size), 0, s, powers, divide, x, n);
}

}  // namespace lockstep::cuda
