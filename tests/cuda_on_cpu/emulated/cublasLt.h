// Stands in for NVIDIA's <cublasLt.h>: the part that core/cuda/gemm.cpp uses, multiplying naively
// in fp32, of factors that TF32 has rounded if that was asked for. Strict where the library is:
// leading dimensions, alignment promises and the workspace are checked, and a promise that does not
// hold is an error, as is TF32 of anything but fp32. Not checked: which other combinations of types
// the library supports.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/dtype.h"

enum cublasStatus_t {
  CUBLAS_STATUS_SUCCESS = 0,
  CUBLAS_STATUS_INVALID_VALUE = 7,
  CUBLAS_STATUS_NOT_SUPPORTED = 15
};
enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_16BF = 14 };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_32F_FAST_TF32 = 77 };
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cublasLtPointerMode_t { CUBLASLT_POINTER_MODE_HOST, CUBLASLT_POINTER_MODE_DEVICE };
enum cublasLtEpilogue_t {
  CUBLASLT_EPILOGUE_DEFAULT = 1,
  CUBLASLT_EPILOGUE_BIAS = 4,
  CUBLASLT_EPILOGUE_GELU_AUX = 32 | 128,
  CUBLASLT_EPILOGUE_GELU_AUX_BIAS = 4 | 32 | 128,
  CUBLASLT_EPILOGUE_DGELU = 64 | 128
};
enum cublasLtMatmulDescAttributes_t {
  CUBLASLT_MATMUL_DESC_TRANSA,
  CUBLASLT_MATMUL_DESC_TRANSB,
  CUBLASLT_MATMUL_DESC_POINTER_MODE,
  CUBLASLT_MATMUL_DESC_EPILOGUE,
  CUBLASLT_MATMUL_DESC_BIAS_POINTER,
  CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
  CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
  CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD
};
enum cublasLtMatrixLayoutAttribute_t {
  CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
  CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET
};
enum cublasLtMatmulPreferenceAttributes_t {
  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
};

struct FakeProduct {
  bool tf32;
  cublasOperation_t transposed[2] = {CUBLAS_OP_N, CUBLAS_OP_N};
  cublasLtPointerMode_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  cudaDataType_t bias_type = CUDA_R_32F;
  void* aux = nullptr;  // what gelu is applied to, in the result's type
  int64_t aux_step = 0;
};
struct FakeLayout {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t step;
  int32_t batch = 1;
  int64_t batch_step = 0;
};
struct FakePreference {
  size_t workspace = 0;
  uint32_t alignment[4] = {256, 256, 256, 256};  // the library's own defaults
};
using cublasLtMatmulDesc_t = FakeProduct*;
using cublasLtMatrixLayout_t = FakeLayout*;
using cublasLtMatmulPreference_t = FakePreference*;
using cublasLtHandle_t = int*;
struct cublasLtMatmulAlgo_t {
  uint32_t alignment[4];
};
struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  size_t workspaceSize;
};

inline const char* cublasLtGetStatusString(cublasStatus_t s) {
  return s == CUBLAS_STATUS_SUCCESS ? "success" : "invalid value";
}
inline cublasStatus_t cublasLtCreate(cublasLtHandle_t* h) {
  *h = new int(0);
  return CUBLAS_STATUS_SUCCESS;
}
inline void cublasLtDestroy(cublasLtHandle_t h) {
  delete h;
}
inline cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* d, cublasComputeType_t compute,
                                               cudaDataType_t scale) {
  const bool tf32 = compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  if (!(tf32 || compute == CUBLAS_COMPUTE_32F) || scale != CUDA_R_32F)
    return CUBLAS_STATUS_INVALID_VALUE;
  *d = new FakeProduct{.tf32 = tf32};
  return CUBLAS_STATUS_SUCCESS;
}
inline void cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
  delete d;
}
inline cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* l, cudaDataType_t type,
                                                 uint64_t rows, uint64_t columns, int64_t step) {
  *l = new FakeLayout{type, rows, columns, step};
  return step >= static_cast<int64_t>(rows) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
inline void cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
  delete l;
}
inline cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* p) {
  *p = new FakePreference;
  return CUBLAS_STATUS_SUCCESS;
}
inline void cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
  delete p;
}

namespace fake_cublas {
template <class T>
cublasStatus_t assign(T& to, const void* from, size_t bytes) {
  if (bytes != sizeof to) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
inline float at(const void* p, cudaDataType_t type, int64_t i) {
  return type == CUDA_R_32F ? static_cast<const float*>(p)[i]
                            : lockstep::to_float(static_cast<const lockstep::bf16*>(p)[i]);
}
// To the nearest number with 10 bits of fraction, as cvt.rna.tf32.f32 does.
inline float to_tf32(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return std::isfinite(x) ? std::bit_cast<float>((bits + 0x1000u) & ~0x1fffu) : x;
}
inline float factor(const void* p, cudaDataType_t type, int64_t i, bool tf32) {
  return tf32 ? to_tf32(at(p, type, i)) : at(p, type, i);
}
inline void put(void* p, cudaDataType_t type, int64_t i, float x) {
  if (type == CUDA_R_32F)
    static_cast<float*>(p)[i] = x;
  else
    static_cast<lockstep::bf16*>(p)[i] = lockstep::to_bf16(x);
}
// The gelu with tanh, and its derivative, in double.
inline double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
inline double gelu_grad(double x) {
  const double c = std::sqrt(2 / M_PI), t = std::tanh(c * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
}
inline bool lies_on(const void* p, uint32_t alignment) {
  return reinterpret_cast<uintptr_t>(p) % alignment == 0;
}
}  // namespace fake_cublas

inline cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                                     cublasLtMatmulDescAttributes_t a,
                                                     const void* v, size_t bytes) {
  using fake_cublas::assign;
  switch (a) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return assign(d->transposed[0], v, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return assign(d->transposed[1], v, bytes);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
      return assign(d->pointer_mode, v, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return assign(d->epilogue, v, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return assign(d->bias, v, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return assign(d->bias_type, v, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return assign(d->aux, v, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return assign(d->aux_step, v, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}
inline cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
                                                       cublasLtMatrixLayoutAttribute_t a,
                                                       const void* v, size_t bytes) {
  return a == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT ? fake_cublas::assign(l->batch, v, bytes)
                                                 : fake_cublas::assign(l->batch_step, v, bytes);
}
inline cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                           cublasLtMatmulPreferenceAttributes_t a,
                                                           const void* v, size_t bytes) {
  if (a == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
    return fake_cublas::assign(p->workspace, v, bytes);
  return fake_cublas::assign(p->alignment[a - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], v,
                             bytes);
}
inline cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                                     cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                     cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                     cublasLtMatmulPreference_t p, int asked,
                                                     cublasLtMatmulHeuristicResult_t* results,
                                                     int* found) {
  if (asked < 1) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(results->algo.alignment, p->alignment, sizeof p->alignment);
  results->workspaceSize = p->workspace < 1000 ? p->workspace : 1000;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t p, const void* alpha,
                                     const void* a, cublasLtMatrixLayout_t la, const void* b,
                                     cublasLtMatrixLayout_t lb, const void* beta, const void* c,
                                     cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t ld,
                                     const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                                     size_t workspace_bytes, cudaStream_t stream) {
  const bool ta = p->transposed[0] == CUBLAS_OP_T, tb = p->transposed[1] == CUBLAS_OP_T;
  const uint64_t m = ta ? la->columns : la->rows, k = ta ? la->rows : la->columns;
  const uint64_t n = tb ? lb->rows : lb->columns;
  const void* pointers[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i)
    if (!fake_cublas::lies_on(pointers[i], algorithm->alignment[i]))
      return CUBLAS_STATUS_INVALID_VALUE;
  if ((tb ? lb->columns : lb->rows) != k || ld->rows != m || ld->columns != n || c != d ||
      la->batch != ld->batch || lb->batch != ld->batch || !workspace || workspace_bytes < 1000)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (p->tf32 && !(la->type == CUDA_R_32F && lb->type == CUDA_R_32F && ld->type == CUDA_R_32F))
    return CUBLAS_STATUS_INVALID_VALUE;
  const bool has_aux = p->epilogue & 128, has_bias = p->epilogue & 4;
  if (has_aux && (p->aux_step % 8 != 0 || p->aux_step < static_cast<int64_t>(m) ||
                  !fake_cublas::lies_on(p->aux, 16) || ld->batch != 1))
    return CUBLAS_STATUS_INVALID_VALUE;
  // Descriptors, and factors on the host, are the caller's again when this returns.
  struct Factors {
    float alpha, beta;
  };
  const bool there = p->pointer_mode == CUBLASLT_POINTER_MODE_DEVICE;
  const auto factors = [alpha, beta] {
    return Factors{*static_cast<const float*>(alpha), *static_cast<const float*>(beta)};
  };
  const Factors now = there ? Factors{} : factors();
  cuda_on_cpu::on_stream(stream, [=, product = *p, a_layout = *la, b_layout = *lb, d_layout = *ld] {
    const FakeProduct* p = &product;
    const FakeLayout *la = &a_layout, *lb = &b_layout, *ld = &d_layout;
    const auto [al, be] = there ? factors() : now;
    std::memset(workspace, 0xff, workspace_bytes);
    for (int64_t z = 0; z < ld->batch; ++z)
      for (uint64_t j = 0; j < n; ++j)
        for (uint64_t i = 0; i < m; ++i) {
          float sum = 0;
          for (uint64_t l = 0; l < k; ++l)
            sum += fake_cublas::factor(
                       a, la->type, z * la->batch_step + (ta ? i * la->step + l : l * la->step + i),
                       p->tf32) *
                   fake_cublas::factor(
                       b, lb->type, z * lb->batch_step + (tb ? l * lb->step + j : j * lb->step + l),
                       p->tf32);
          sum *= al;
          const int64_t at = z * ld->batch_step + j * ld->step + i;
          if (be != 0) sum += be * fake_cublas::at(c, ld->type, at);
          if (has_bias) sum += fake_cublas::at(p->bias, p->bias_type, i);
          if (has_aux) {
            const int64_t beside = j * p->aux_step + i;
            if (p->epilogue == CUBLASLT_EPILOGUE_DGELU) {
              sum *= static_cast<float>(
                  fake_cublas::gelu_grad(fake_cublas::at(p->aux, ld->type, beside)));
            } else {
              fake_cublas::put(p->aux, ld->type, beside, sum);
              sum = static_cast<float>(fake_cublas::gelu(sum));
            }
          }
          fake_cublas::put(d, ld->type, at, sum);
        }
  });
  return CUBLAS_STATUS_SUCCESS;
}
