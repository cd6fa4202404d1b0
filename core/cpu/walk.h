// Reading and writing the rows that a Walk (core/walk.h) yields, in chunks that stay in cache.
// Read next: elementwise.cpp.
#pragma once

#include "core/cpu/rows.h"
#include "core/walk.h"

namespace lockstep {

// Elements at a time: three or four buffers of this size stay in the first-level cache.
constexpr int64_t chunk = 512;

inline const float* read_strided(const Source& x, int64_t offset, int64_t stride, int64_t n,
                                 float* buffer) {
  if (stride == 1) return x.read(offset, n, buffer);
  if (stride == 0)
    std::fill_n(buffer, n, x.at(offset));
  else
    for (int64_t i = 0; i < n; ++i) buffer[i] = x.at(offset + i * stride);
  return buffer;
}

inline void write_strided(const float* x, const Sink& y, int64_t offset, int64_t stride,
                          int64_t n) {
  if (stride == 1) return y.write(x, offset, n);
  for (int64_t i = 0; i < n; ++i) y.write(x[i], offset + i * stride);
}

}  // namespace lockstep
