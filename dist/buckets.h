// Buckets: the flat memory in which gradients travel. Which parameter lies where, and which rank
// owns which part, is decided here and depends on shapes, bucket size and number of ranks alone.
// Read next: reducer.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace lockstep {

// Whole cells of one parameter (see core/backend.h) that one rank owns.
struct CellRun {
  size_t parameter;  // index into the parameters given
  int64_t cell;      // first cell, counted from the parameter's start
  int64_t cells;
  int64_t offset;    // of the first element, in the bucket
  int64_t elements;  // fewer than cells * cell_size only at the parameter's end
};

struct Bucket {
  struct Member {
    size_t parameter;
    int64_t offset;  // first element
  };
  std::vector<Member> members;  // in order of arrival
  std::vector<int64_t> edges;   // (ranks + 1) elements: part r is [edges[r], edges[r + 1])
  std::vector<std::vector<CellRun>> parts;  // by rank

  int64_t elements() const { return edges.back(); }
};

// Gradients arrive in reverse order of `parameters` (their use in forward), so buckets are filled
// in that order, and closed at `bucket_bytes` of fp32; a parameter is never split. The gradients
// that arrive last get a bucket of their own that is as small as can be (at most 1 MiB, and the
// last parameter if it is larger): nothing is left to hide its exchange behind. Parts are as even
// as whole cells allow; padding is zero. With unit_of (by parameter, ascending) no bucket holds
// parameters of two units.
std::vector<Bucket> plan_buckets(const std::vector<NamedTensor>& parameters, int64_t bucket_bytes,
                                 int ranks, const std::vector<size_t>& unit_of = {});

int64_t cell_count(int64_t elements);

}  // namespace lockstep
