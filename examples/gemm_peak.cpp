// Timing matrix products. Read next: bench_gemm_command.cpp.
#include "examples/gemm_peak.h"

#include <algorithm>

#include "core/backend.h"
#include "examples/stopwatch.h"

namespace lockstep {

double gemm_rate(DType dtype, int64_t m, int64_t n, int64_t k, double seconds) {
  CategoryScope scope(Category::buffers);
  Tensor a = Tensor::empty({m, k}, dtype), b = Tensor::empty({k, n}, dtype),
         out = Tensor::empty({m, n}, dtype);
  backend().fill(a, 0.5f);
  backend().fill(b, 0.25f);
  backend().gemm(a, b, out, {});  // builds the kernel and touches the memory
  backend().stream().synchronize();
  double best_ms = 1e300;
  const Stopwatch all;
  for (int i = 0; i < 1 || all.ms() < 1e3 * seconds; ++i) {
    const Stopwatch one;
    backend().gemm(a, b, out, {});
    backend().stream().synchronize();
    best_ms = std::min(best_ms, one.ms());
  }
  return 2e-6 * static_cast<double>(m * n * k) / best_ms;
}

double measured_gemm_peak(DType dtype, double seconds) {
  struct Shape3 {
    int64_t m, n, k;
  };
  Allocator apart(Allocator::current().memory());
  const AllocatorScope scope(apart);
  // Square ones, and the shapes of a transformer's MLP, which some libraries do better.
  // The last is for devices.
  constexpr Shape3 shapes[] = {
      {1024, 1024, 1024}, {2048, 1536, 512}, {2048, 2048, 1024}, {4096, 4096, 4096}};
  // So many that one of them was not interrupted.
  double best = gemm_rate(dtype, 128, 128, 128, 0.02);
  for (const auto& [m, n, k] : shapes) {
    const double expected = 2e-9 * static_cast<double>(m * n * k) / best;
    if (expected > seconds) break;
    best = std::max(best, gemm_rate(dtype, m, n, k, seconds / 3));  // the first three use it up
  }
  return best;
}

}  // namespace lockstep
