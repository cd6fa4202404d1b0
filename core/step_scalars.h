// What changes from step to step or from micro-step to micro-step, in one small buffer that kernels
// read: a captured CUDA graph stays valid because only these contents change. Written by the
// trainer, read by optimizer and dropout kernels when they run. Read next: backend.h.
#pragma once

#include <cstdint>

namespace lockstep {

struct StepScalars {
  float lr = 0;          // learning rate of this step, scaling and schedule included
  float grad_scale = 1;  // clip factor, multiplied into every gradient by the optimizer kernel
  float bias_correction1 = 1;  // 1 - beta1^t
  float bias_correction2 = 1;  // 1 - beta2^t
  int32_t skip = 0;            // non-zero: a non-finite step, the optimizer changes nothing
  int32_t step = 0;            // counts from 1; the RNG's per-step key
  // non-zero: AdamW's second moment stays as it is, and gradients are momenta (1-bit Adam)
  int32_t variance_frozen = 0;
  int64_t first_sample = 0;  // of the micro-batch under way: global index of its first sample
};

}  // namespace lockstep
