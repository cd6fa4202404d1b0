// The peak that MFU is measured against on a machine without a data sheet: the best rate of large
// matrix products, measured in this process, with its threads and in the run's precision. Read
// next: bench_step_command.cpp.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace lockstep {

// GFLOP/s of [m, k] times [k, n] in `dtype`, best of the repetitions that fit into `seconds` (at
// least one).
double gemm_rate(DType dtype, int64_t m, int64_t n, int64_t k, double seconds);

// The best of several large shapes, `seconds` altogether. Its matrices stand in no memory figures
// of the calling rank.
double measured_gemm_peak(DType dtype, double seconds);

}  // namespace lockstep
