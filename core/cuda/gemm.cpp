// Matrix products by cuBLASLt. An algorithm is chosen once per shape by the library's heuristic,
// never by timing, so that it is the same in every run; it is kept with its descriptors. Sums are
// fp32 for bf16 operands too; fp32 operands are multiplied as fp32, unless the device was opened
// for TF32. Bias and gelu are epilogues: they cost no pass over memory of their own.
#include "core/cuda/gemm.h"

#include <cublasLt.h>

#include <array>
#include <map>
#include <optional>

#include "core/cuda/kernels.h"
#include "core/matrix.h"
#include "core/scratch.h"

namespace lockstep {

namespace {

constexpr size_t workspace_limit = size_t{32} << 20;  // what NVIDIA advises for its newest GPUs

void check_cublas(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail(Exit::internal, "[gemm] cuBLASLt: {} failed: {}", what, cublasLtGetStatusString(status));
}

cudaDataType_t cuda_type(DType t) {
  check(t == DType::f32 || t == DType::bf16, "[gemm] {} operand; f32 and bf16 are right",
        name_of(t));
  return t == DType::f32 ? CUDA_R_32F : CUDA_R_16BF;
}

cublasComputeType_t compute_type(DType factors, Fp32Products products) {
  return factors == DType::f32 && products == Fp32Products::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                 : CUBLAS_COMPUTE_32F;
}

// cuBLASLt's matrices are stored by columns, so a matrix stored by rows is its transpose there, and
// out^T [n, m] = b^T a^T is computed: b is its first operand, a its second.
struct Layout {
  bool transposed;  // stored by columns here, so by rows there
  int64_t step;     // between rows (here; columns there)

  explicit Layout(const Matrix& m)
      : transposed(m.column_stride != 1), step(transposed ? m.column_stride : m.row_stride) {}
};

// Alignment that the heuristic may count on.
uint32_t alignment(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  return static_cast<uint32_t>(std::min<uintptr_t>(address & (~address + 1), 16));
}

template <class T>
void set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check_cublas(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof value),
               "cublasLtMatmulDescSetAttribute");
}
template <class T>
void set(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, const T& value) {
  check_cublas(cublasLtMatrixLayoutSetAttribute(layout, attribute, &value, sizeof value),
               "cublasLtMatrixLayoutSetAttribute");
}
template <class T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const T& value) {
  check_cublas(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
               "cublasLtMatmulPreferenceSetAttribute");
}

struct Destroy {
  void operator()(cublasLtMatmulDesc_t p) const { cublasLtMatmulDescDestroy(p); }
  void operator()(cublasLtMatrixLayout_t p) const { cublasLtMatrixLayoutDestroy(p); }
  void operator()(cublasLtMatmulPreference_t p) const { cublasLtMatmulPreferenceDestroy(p); }
};
template <class Pointer>
using Owned = std::unique_ptr<std::remove_pointer_t<Pointer>, Destroy>;

Owned<cublasLtMatrixLayout_t> make_layout(const Matrix& m) {
  const Layout stored(m);
  const auto rows = static_cast<uint64_t>(stored.transposed ? m.rows : m.columns);
  const auto columns = static_cast<uint64_t>(stored.transposed ? m.columns : m.rows);
  cublasLtMatrixLayout_t layout;
  check_cublas(cublasLtMatrixLayoutCreate(&layout, cuda_type(m.type), rows, columns, stored.step),
               "cublasLtMatrixLayoutCreate");
  Owned<cublasLtMatrixLayout_t> owned(layout);
  set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(m.batch));
  set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, m.batch_stride);
  return owned;
}

struct Plan {
  Owned<cublasLtMatmulDesc_t> product;
  Owned<cublasLtMatrixLayout_t> a, b, out;
  cublasLtMatmulAlgo_t algorithm;
  size_t workspace_bytes;
};

enum class Gelu { none, forward, gradient };

bool has_gelu_epilogue(const Tensor& pre) {
  return pre.dim(-1) % 8 == 0 && alignment(pre.raw()) == 16;
}

}  // namespace

struct CudaGemm::Call {
  const Tensor &a, &b, &out;
  GemmOptions options;
  Gelu gelu = Gelu::none;
  const Tensor* pre = nullptr;  // beside gelu: written by forward, read by gradient

  cublasLtEpilogue_t epilogue() const {
    if (gelu == Gelu::gradient) return CUBLASLT_EPILOGUE_DGELU;
    if (gelu == Gelu::forward)
      return options.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    return options.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  }
  // What may differ between calls of one plan.
  void set_pointers(cublasLtMatmulDesc_t product) const {
    if (options.bias) set(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, options.bias->raw());
    if (pre) set(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, pre->raw());
  }

  // Everything an algorithm is chosen for.
  using Key = std::array<int64_t, 22>;
  Key key() const {
    Key key{};
    size_t i = 0;
    for (const Tensor* t : {&a, &b, &out}) {
      const Matrix m(*t);
      for (int64_t v : {m.batch, m.rows, m.columns, m.batch_stride, m.row_stride,
                        int64_t{alignment(t->raw())}, static_cast<int64_t>(m.type)})
        key[i++] = v;
    }
    key[i] = epilogue() * 4 + 2 * (options.alpha != nullptr) + options.accumulate;
    return key;
  }

  // Nothing if cuBLASLt has no algorithm.
  std::optional<Plan> make_plan(cublasLtHandle_t handle, Fp32Products products) const;
};

std::optional<Plan> CudaGemm::Call::make_plan(cublasLtHandle_t handle,
                                              Fp32Products products) const {
  const Matrix a_matrix(a), b_matrix(b), out_matrix = result_matrix(out);
  Plan plan{{}, make_layout(a_matrix), make_layout(b_matrix), make_layout(out_matrix), {}, 0};

  cublasLtMatmulDesc_t product;
  check_cublas(cublasLtMatmulDescCreate(&product, compute_type(a.dtype(), products), CUDA_R_32F),
               "cublasLtMatmulDescCreate");
  plan.product.reset(product);
  const auto operation = [](const Matrix& m) {
    return Layout(m).transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  };
  set(product, CUBLASLT_MATMUL_DESC_TRANSA, operation(b_matrix));
  set(product, CUBLASLT_MATMUL_DESC_TRANSB, operation(a_matrix));
  if (options.alpha) set(product, CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_DEVICE);
  set(product, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue());
  if (options.bias)
    set(product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(options.bias->dtype()));
  if (pre) set(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, out_matrix.row_stride);
  set_pointers(product);

  cublasLtMatmulPreference_t preference;
  check_cublas(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  const Owned<cublasLtMatmulPreference_t> owned(preference);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_limit);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(b.raw()));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(a.raw()));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(out.raw()));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(out.raw()));
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, product, plan.b.get(), plan.a.get(), plan.out.get(),
                                     plan.out.get(), preference, 1, &best, &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && found == 0))
    return {};
  check_cublas(status, "cublasLtMatmulAlgoGetHeuristic");
  plan.algorithm = best.algo;
  plan.workspace_bytes = best.workspaceSize;
  return plan;
}

struct CudaGemm::Plans {
  cublasLtHandle_t handle = nullptr;
  std::map<Call::Key, std::optional<Plan>> plans;
};

CudaGemm::CudaGemm(CUstream_st* stream, Fp32Products products)
    : stream_(stream), products_(products), plans_(new Plans) {
  check_cublas(cublasLtCreate(&plans_->handle), "cublasLtCreate");
}
CudaGemm::~CudaGemm() {
  cublasLtDestroy(plans_->handle);
}

void CudaGemm::operator()(const Tensor& a, const Tensor& b, Tensor& out,
                          const GemmOptions& options) {
  if (!run({a, b, out, options}))
    fail(Exit::internal, "[gemm] cuBLASLt has no algorithm for {} x {} to {}", to_string(a),
         to_string(b), to_string(out));
}

bool CudaGemm::with_gelu(const Tensor& a, const Tensor& b, const Tensor* bias, Tensor& pre,
                         Tensor& out) {
  return has_gelu_epilogue(pre) && run({a, b, out, {.bias = bias}, Gelu::forward, &pre});
}

bool CudaGemm::with_gelu_grad(const Tensor& a, const Tensor& b, const Tensor& pre, Tensor& out) {
  return has_gelu_epilogue(pre) && run({a, b, out, {}, Gelu::gradient, &pre});
}

bool CudaGemm::run(const Call& call) {
  constexpr size_t most = 1024;  // generation sees a new shape for every length
  const Call::Key key = call.key();
  auto found = plans_->plans.find(key);
  if (found == plans_->plans.end()) {
    if (plans_->plans.size() >= most) plans_->plans.clear();
    found = plans_->plans.emplace(key, call.make_plan(plans_->handle, products_)).first;
  }
  if (!found->second) return false;
  const Plan& plan = *found->second;
  call.set_pointers(plan.product.get());

  const Scratch<std::byte> workspace(static_cast<int64_t>(plan.workspace_bytes));
  // cuBLASLt reads both factors from the same side: with alpha on the device, beta is there too.
  const Tensor* alpha = call.options.alpha;
  const Scratch<float> device_beta(alpha ? 1 : 0);
  const float one = 1.0f, beta = call.options.accumulate ? 1.0f : 0.0f;
  if (alpha) cuda::fill(stream_, {}, {device_beta.data()}, beta);
  check_cublas(
      cublasLtMatmul(plans_->handle, plan.product.get(), alpha ? alpha->raw() : &one, call.b.raw(),
                     plan.b.get(), call.a.raw(), plan.a.get(), alpha ? device_beta.data() : &beta,
                     call.out.raw(), plan.out.get(), call.out.raw(), plan.out.get(),
                     &plan.algorithm, workspace.data(), plan.workspace_bytes, stream_),
      "cublasLtMatmul");
  return true;
}

}  // namespace lockstep
