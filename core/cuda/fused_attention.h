// Attention by a library, for the one shape that training repeats; other shapes and types stay with
// the kernels of this folder. cudnn_attention.cpp where cuDNN was found, no_cudnn.cpp elsewhere.
#pragma once

#include <memory>
#include <string>

#include "core/backend.h"

struct CUstream_st;

namespace lockstep {

class FusedAttention {
 public:
  virtual ~FusedAttention() = default;
  virtual std::string description() const = 0;  // "cuDNN 9.19"
  // Whether a call has the shape and type, and memory aligned as that was planned for.
  virtual bool fits(const Tensor& qkv, const Heads& heads) const = 0;
  // As Backend's, where qkv fits; dqkv is bf16 and overwritten.
  virtual void forward(const Tensor& qkv, Tensor& o, Tensor& lse) = 0;
  virtual void backward(const Tensor& qkv, const Tensor& o, const Tensor& lse, const Tensor& d_o,
                        Tensor& dqkv) = 0;
};

// Null, and `reason` says why, where there is no library, or none of its deterministic engines does
// bf16 attention of b samples of t tokens with these heads on this device.
std::unique_ptr<FusedAttention> make_fused_attention(CUstream_st* stream, const Heads& heads,
                                                     int64_t b, int64_t t, std::string& reason);

}  // namespace lockstep
