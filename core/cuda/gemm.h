// Matrix products by cuBLASLt. Read next: gemm.cpp.
#pragma once

#include "core/backend.h"

struct CUstream_st;

namespace lockstep {

class CudaGemm {
 public:
  explicit CudaGemm(CUstream_st* stream);
  ~CudaGemm();
  CudaGemm(const CudaGemm&) = delete;

  // As Backend::gemm, for non-empty matrices; a bias must have out's type.
  void operator()(const Tensor& a, const Tensor& b, Tensor& out, const GemmOptions& options);

 private:
  struct Plans;
  CUstream_st* stream_;
  std::unique_ptr<Plans> plans_;
};

}  // namespace lockstep
