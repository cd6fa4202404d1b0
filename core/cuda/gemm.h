// Matrix products by cuBLASLt. Read next: gemm.cpp.
#pragma once

#include "core/backend.h"
#include "core/cuda/open.h"

struct CUstream_st;

namespace lockstep {

class CudaGemm {
 public:
  CudaGemm(CUstream_st* stream, Fp32Products products);
  ~CudaGemm();
  CudaGemm(const CudaGemm&) = delete;

  // As Backend::gemm, for non-empty matrices; a bias must have out's type.
  void operator()(const Tensor& a, const Tensor& b, Tensor& out, const GemmOptions& options);

  // The product's own epilogue computes out = GeluTanh(a b + bias) and keeps what is in brackets in
  // `pre`, or out = a b * gelu'(pre). False, and nothing done, where cuBLASLt cannot: it wants
  // rows of a multiple of 8 elements on 16 bytes, and an algorithm for the shape. Its epilogue for
  // the bias gradient is not used: it would round sums over all rows to out's type.
  bool with_gelu(const Tensor& a, const Tensor& b, const Tensor* bias, Tensor& pre, Tensor& out);
  bool with_gelu_grad(const Tensor& a, const Tensor& b, const Tensor& pre, Tensor& out);

 private:
  struct Call;
  bool run(const Call& call);

  struct Plans;
  CUstream_st* stream_;
  const Fp32Products products_;
  std::unique_ptr<Plans> plans_;
};

}  // namespace lockstep
