// Bytes and floats in a row. Each call is one thread's: who has much to do cuts it into pieces.
// Read next: tree_sum.h.
#include <cstring>

#include "core/cpu/cpu_backend.h"
#include "core/cpu/tree_sum.h"

namespace lockstep {

void CpuBackend::move(const void* from, void* to, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void CpuBackend::zero(void* at, size_t bytes) {
  if (bytes > 0) std::memset(at, 0, bytes);
}

void CpuBackend::add(const float* x, float* sum, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
}

void CpuBackend::tree_sum(std::span<const float* const> parts, std::span<float* const> outs,
                          int64_t n) {
  lockstep::tree_sum(parts, outs, static_cast<size_t>(n));
}

}  // namespace lockstep
