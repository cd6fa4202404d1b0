// Planning buckets and their parts. Read next: reducer.cpp.
#include "dist/buckets.h"

#include <algorithm>

#include "core/backend.h"

namespace lockstep {

namespace {

constexpr int64_t last_bucket_bytes = int64_t{1} << 20;
constexpr int64_t alignment = 16;  // elements: every parameter starts on a cache line

int64_t aligned(int64_t elements) {
  return (elements + alignment - 1) / alignment * alignment;
}

int64_t bytes_of(const NamedTensor& p) {
  return aligned(p.tensor.numel()) * static_cast<int64_t>(sizeof(float));
}

// How many of the first parameters, whose gradients come last, form the last bucket. One that is
// too large for it is in it all the same, and with it what comes at the same time: a table of
// positions beside that of tokens would else hold up the bucket before.
size_t last_members(const std::vector<NamedTensor>& parameters) {
  size_t n = 0;
  int64_t room = last_bucket_bytes;
  bool any = false;
  while (n < parameters.size() && (!any || bytes_of(parameters[n]) <= room)) {
    const int64_t bytes = bytes_of(parameters[n++]);
    any |= bytes > 0;
    if (bytes <= room) room -= bytes;
  }
  return n;
}

// Cuts a bucket of `total` elements into parts, each at the first start of a cell that is not
// before its even share.
void cut(Bucket& bucket, const std::vector<NamedTensor>& parameters, int64_t total, int ranks) {
  bucket.edges.assign(1, 0);
  bucket.parts.assign(ranks, {});
  int r = 0;
  for (const auto& [parameter, offset] : bucket.members) {
    const int64_t elements = parameters[parameter].tensor.numel();
    for (int64_t cell = 0; cell < cell_count(elements); ++cell) {
      const int64_t begin = offset + cell * cell_size;
      while (r + 1 < ranks && begin >= total * (r + 1) / ranks) {
        bucket.edges.push_back(begin);
        ++r;
      }
      const int64_t size = std::min(cell_size, elements - cell * cell_size);
      std::vector<CellRun>& runs = bucket.parts[r];
      if (runs.empty() || runs.back().parameter != parameter)
        runs.push_back({parameter, cell, 0, begin, 0});
      runs.back().cells++;
      runs.back().elements += size;
    }
  }
  bucket.edges.resize(ranks + 1, total);
}

}  // namespace

int64_t cell_count(int64_t elements) {
  return (elements + cell_size - 1) / cell_size;
}

std::vector<Bucket> plan_buckets(const std::vector<NamedTensor>& parameters, int64_t bucket_bytes,
                                 int ranks, const std::vector<size_t>& unit_of) {
  std::vector<Bucket> buckets;
  const size_t last = last_members(parameters);
  int64_t filled = 0;  // elements of the open bucket
  const auto close = [&] {
    if (filled > 0) cut(buckets.back(), parameters, filled, ranks);
    filled = 0;
  };
  for (size_t i = parameters.size(); i-- > 0;) {
    const int64_t size = aligned(parameters[i].tensor.numel());
    if (size == 0) continue;
    const bool full = (filled + size) * static_cast<int64_t>(sizeof(float)) > bucket_bytes;
    const bool last_begins = filled > 0 && i < last && buckets.back().members[0].parameter >= last;
    const bool unit_begins = filled > 0 && !unit_of.empty() &&
                             unit_of[i] != unit_of[buckets.back().members[0].parameter];
    if (filled > 0 && (full || last_begins || unit_begins)) close();
    if (filled == 0) buckets.emplace_back();
    buckets.back().members.push_back({i, filled});
    filled += size;
  }
  close();
  return buckets;
}

}  // namespace lockstep
