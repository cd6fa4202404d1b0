// In place of cudnn_attention.cpp where cuDNN was not found.
#include "core/cuda/fused_attention.h"

namespace lockstep {

std::unique_ptr<FusedAttention> make_fused_attention(CUstream_st*, const Heads&, int64_t, int64_t,
                                                     std::string& reason) {
  reason = "built without cuDNN";
  return nullptr;
}

}  // namespace lockstep
