// What every codec of this folder stands on. A codec writes one *cell* (4096 consecutive elements
// of a parameter, its last cell may be shorter) and reads it back. It is written once, for a
// *team*: one thread on the CPU (cpu/team.h), a block of threads on a GPU (cuda/team.h), with the
// same bits. Read next: bf16.h, the shortest codec that loses something.
//
// What a team offers; f and g are functions of an index, and run in any order:
//   team.each(n, f)      f(i) for every i in [0, n)
//   team.largest(n, f)   the largest of the uint32 f(i); every member gets it, as below
//   team.count(n, f)     of how many i f(i) is true
//   team.sum(n, f)       of the doubles f(i), n <= cell_size: a fixed tree
//   team.scan(n, f, g)   g(i, sum of f(j) with j < i) for each i with f(i) > 0; the sum of all
//   team.sync()          what members wrote before is seen by all after; all but each() sync too
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

// What only a team runs: CPU loops here, GPU kernels where nvcc compiles.
#ifdef __CUDACC__
#define LOCKSTEP_TEAM __device__
#else
#define LOCKSTEP_TEAM
#endif

namespace lockstep {

// Elements per cell: codecs, norms and shard cuts all count cells from each parameter's start.
constexpr int64_t cell_size = 4096;

// Partial sums of a team: element i belongs to sum i % team_size.
constexpr int team_size = 256;

// Consecutive elements of one parameter, from the start of a cell. Only the parameter's last cell
// may be short.
struct CodecRun {
  int64_t elements;
  int64_t first;  // index of the first element in the parameter, a multiple of cell_size
  int64_t row;    // elements per row of the parameter: its last dimension

  LOCKSTEP_HD int64_t cells() const { return (elements + cell_size - 1) / cell_size; }
  LOCKSTEP_HD int64_t cell_elements(int64_t cell) const {
    const int64_t left = elements - cell * cell_size;
    return left < cell_size ? left : cell_size;
  }
};

// Runs and cells start at multiples of 16 bytes of the wire.
LOCKSTEP_HD constexpr size_t wire_aligned(size_t bytes) {
  return (bytes + 15) / 16 * 16;
}

// The rest of a message, for cells that take as many bytes as they need: the next ones go to `base`
// + *used, a multiple of 16 bytes, and what they take is added to it. Both lie where the data do,
// so that runs can follow each other although the host does not know yet where they end.
struct WireTail {
  std::byte* base = nullptr;
  uint64_t* used = nullptr;
};

struct CodecOptions {
  double ratio = 0.01;  // topk: share of each cell's elements that is sent
};

namespace codec {

LOCKSTEP_HD inline uint32_t bits_of(float x) {
  return std::bit_cast<uint32_t>(x);
}
// Magnitudes are ordered like the integers they are, with infinity and NaN above all.
LOCKSTEP_HD inline uint32_t magnitude_bits(float x) {
  return bits_of(x) & 0x7fffffffu;
}

// For codecs that need no working memory.
struct Nothing {};

}  // namespace codec

}  // namespace lockstep
