// Tensors in, launchers out. Read next: kernels.h, then any .cu file.
#include "core/cuda/cuda_backend.h"

#include <bit>

#include "core/cuda/fused_attention.h"
#include "core/cuda/gemm.h"
#include "core/cuda/kernels.h"
#include "core/scratch.h"
#include "core/walk.h"

namespace lockstep {

namespace cuda {

// Declared in launch.h, which only .cu files see.
[[noreturn]] void call_failed(const char* what, const char* reason) {
  fail(Exit::internal, "[cuda] {} failed: {}", what, reason);
}

}  // namespace cuda

namespace {

using cuda::Dims;
using cuda::In;
using cuda::Out;

// `unit`: rows (or heads, samples) start at multiples of this many elements.
bool aligned(const Tensor& t, int64_t unit) {
  return unit % cuda::group == 0 && reinterpret_cast<uintptr_t>(t.raw()) % 16 == 0;
}
In in(const Tensor& t, int64_t unit) {
  return {t.raw(), t.dtype() == DType::bf16, aligned(t, unit)};
}
Out out(const Tensor& t, int64_t unit, bool accumulate = false) {
  return {t.raw(), t.dtype() == DType::bf16, aligned(t, unit), accumulate};
}
Out out(const Tensor* t, int64_t unit, bool accumulate) {
  return t ? out(*t, unit, accumulate) : Out{};
}
// Operands of a Dims: the kernel looks at the strides itself.
In operand(const Tensor& t) {
  return in(t, cuda::group);
}
Out result(const Tensor& t, bool accumulate = false) {
  return out(t, cuda::group, accumulate);
}

template <int N>
Dims<N> dims(const Walk<N>& walk) {
  static_assert(Walk<N>::max_dims == cuda::max_dims);
  Dims<N> d;
  d.count = std::max(1, walk.ndim());
  d.rows = walk.rows();
  for (int k = 0; k < N; ++k) d.stride[0][k] = 1;
  for (int i = 0; i < walk.ndim(); ++i) {
    d.size[i] = walk.size(i);
    for (int k = 0; k < N; ++k) d.stride[i][k] = walk.stride(i, k);
  }
  return d;
}
template <class... T>
Dims<sizeof...(T)> dims(const Shape& shape, const T&... t) {
  return dims(Walk<sizeof...(T)>(shape, {&t...}));
}

cuda::HeadLayout layout(const Heads& h) {
  return {h.n_head, h.n_kv_head, h.head_dim};
}

// cuBLASLt's gelu is the one with tanh; empty products are not its business.
bool has_epilogue(const Unary& gelu, const Tensor& a, const Tensor& out) {
  return std::holds_alternative<GeluTanh>(gelu) && out.numel() > 0 && a.dim(-1) > 0;
}

Scratch<float> row_sums(int64_t rows, int64_t width) {
  return Scratch<float>(cuda::row_pieces(rows) * width);
}

}  // namespace

CudaBackend::CudaBackend(CUstream_st* stream, std::string description, Fp32Products products)
    : stream_(stream),
      queue_(stream),
      description_(std::move(description)),
      gemm_(std::make_unique<CudaGemm>(stream, products)) {}
CudaBackend::~CudaBackend() = default;

void CudaBackend::fill(Tensor& y, float value) {
  cuda::fill(stream_, dims(y.shape(), y), result(y), value);
}

void CudaBackend::copy(const Tensor& x, Tensor& y, bool accumulate) {
  cuda::copy(stream_, dims(y.shape(), x, y), operand(x), result(y, accumulate));
}

void CudaBackend::unary(const Unary& f, const Tensor& x, Tensor& y) {
  cuda::unary(stream_, f, dims(y.shape(), x, y), operand(x), result(y));
}

void CudaBackend::unary_grad(const Unary& f, const Tensor& x, const Tensor& dy, Tensor& dx,
                             bool accumulate) {
  cuda::unary_grad(stream_, f, dims(dx.shape(), x, dy, dx), operand(x), operand(dy),
                   result(dx, accumulate));
}

void CudaBackend::binary(const Binary& f, const Tensor& a, const Tensor& b, Tensor& y) {
  cuda::binary(stream_, f, dims(y.shape(), a, b, y), operand(a), operand(b), result(y));
}

void CudaBackend::binary_grad(const Binary& f, const Tensor& a, const Tensor& b, const Tensor& dy,
                              bool second, Tensor& d, bool accumulate) {
  cuda::binary_grad(stream_, f, dims(d.shape(), a, b, dy, d), operand(a), operand(b), operand(dy),
                    second, result(d, accumulate));
}

void CudaBackend::reduce(Reduction r, const Tensor& x, Tensor& y, bool accumulate) {
  // x seen twice: its kept dimensions with y, and the reduced ones below each element of y.
  Shape kept = x.shape(), reduced = x.shape();
  for (int d = 0; d < x.ndim(); ++d) (y.shape()[d] == 1 ? kept : reduced)[d] = 1;
  const Tensor corner = x.view(kept, x.strides(), x.offset());
  const Tensor below = x.view(reduced, x.strides(), x.offset());
  if (y.numel() == 0) return;
  const cuda::Fold fold = r == Reduction::sum    ? cuda::Fold::sum
                          : r == Reduction::mean ? cuda::Fold::mean
                                                 : cuda::Fold::max;
  const int64_t pieces = std::max<int64_t>(1, cuda::reduce_pieces(below.numel()));
  const Scratch<double> scratch(pieces * y.numel());
  cuda::reduce(stream_, fold, dims(kept, corner, y), dims(reduced, below), operand(x),
               result(y, accumulate), scratch.data());
}

void CudaBackend::gemm(const Tensor& a, const Tensor& b, Tensor& y, const GemmOptions& options) {
  if (y.numel() == 0) return;
  GemmOptions rest = options;
  const bool empty = a.dim(-1) == 0;  // an empty product is zero
  if (options.bias && (empty || options.bias->dtype() != y.dtype())) {
    copy(*options.bias, y, options.accumulate);
    rest.bias = nullptr, rest.accumulate = true;
  }
  if (!empty)
    (*gemm_)(a, b, y, rest);
  else if (!rest.accumulate)
    fill(y, 0.0f);
}

void CudaBackend::gemm_gelu(const Tensor& a, const Tensor& b, const Tensor* bias, const Unary& gelu,
                            Tensor& pre, Tensor& y) {
  const bool typed = !bias || bias->dtype() == y.dtype();
  if (typed && has_epilogue(gelu, a, y) && gemm_->with_gelu(a, b, bias, pre, y)) return;
  gemm(a, b, pre, {.bias = bias});
  unary(gelu, pre, y);
}

void CudaBackend::gemm_gelu_grad(const Tensor& a, const Tensor& b, const Unary& gelu,
                                 const Tensor& pre, Tensor& dpre, Tensor* db, bool accumulate_db) {
  if (has_epilogue(gelu, a, dpre) && gemm_->with_gelu_grad(a, b, pre, dpre)) {
    if (db) sum_rows(dpre, *db, accumulate_db);
    return;
  }
  gemm(a, b, dpre, {});
  gelu_bias_grad(gelu, pre, dpre, dpre, db, accumulate_db);
}

void CudaBackend::sum_rows(const Tensor& dy, Tensor& db, bool accumulate) {
  const int64_t rows = dy.dim(0), n = dy.dim(1);
  const Scratch<float> scratch = row_sums(rows, n);
  cuda::sum_rows(stream_, in(dy, n), rows, n, out(db, n, accumulate), scratch.data());
}

void CudaBackend::gelu_bias_grad(const Unary& gelu, const Tensor& pre, const Tensor& dy,
                                 Tensor& dpre, Tensor* db, bool accumulate_db) {
  const bool exact = std::holds_alternative<GeluErf>(gelu);
  check(exact || std::holds_alternative<GeluTanh>(gelu),
        "[gelu_bias_grad] functor {} of Unary; one of the two GELUs is right", gelu.index());
  const int64_t rows = pre.dim(0), n = pre.dim(1);
  const Scratch<float> scratch = row_sums(rows, n);
  cuda::gelu_bias_grad(stream_, exact, in(pre, n), in(dy, n), out(dpre, n),
                       out(db, n, accumulate_db), rows, n, scratch.data());
}

void CudaBackend::embedding(const Tensor& table, const Tensor& ids, Tensor& y) {
  const int64_t d = table.dim(1);
  cuda::embedding(stream_, in(table, d), ids.data<int32_t>(), out(y, d), ids.numel(), d);
}

void CudaBackend::embedding_grad(const Tensor& ids, const Tensor& dy, Tensor& dtable,
                                 bool accumulate) {
  if (!accumulate) fill(dtable, 0.0f);
  const int64_t d = dtable.dim(1);
  cuda::embedding_grad(stream_, ids.data<int32_t>(), in(dy, d), out(dtable, d, true), ids.numel(),
                       d);
}

void CudaBackend::layer_norm(const Tensor& x, const Tensor& w, const Tensor& b, float eps,
                             Tensor& y, Tensor& mean, Tensor& rstd) {
  const int64_t c = x.dim(1);
  cuda::layer_norm(stream_, in(x, c), in(w, c), in(b, c), eps, out(y, c), mean.data<float>(),
                   rstd.data<float>(), x.dim(0), c);
}

void CudaBackend::layer_norm_grad(const Tensor& x, const Tensor& w, const Tensor& mean,
                                  const Tensor& rstd, const Tensor& dy, Tensor* dx,
                                  bool accumulate_dx, Tensor* dw, bool accumulate_dw, Tensor* db,
                                  bool accumulate_db) {
  const int64_t rows = x.dim(0), c = x.dim(1);
  const Scratch<float> scratch = row_sums(dw || db ? rows : 0, 2 * c);
  cuda::layer_norm_grad(stream_, in(x, c), in(w, c), mean.data<float>(), rstd.data<float>(),
                        in(dy, c), out(dx, c, accumulate_dx), out(dw, c, accumulate_dw),
                        out(db, c, accumulate_db), rows, c, scratch.data());
}

void CudaBackend::rms_norm(const Tensor& x, const Tensor& w, float eps, Tensor& y, Tensor& rstd) {
  const int64_t c = x.dim(1);
  cuda::rms_norm(stream_, in(x, c), in(w, c), eps, out(y, c), rstd.data<float>(), x.dim(0), c);
}

void CudaBackend::rms_norm_grad(const Tensor& x, const Tensor& w, const Tensor& rstd,
                                const Tensor& dy, Tensor* dx, bool accumulate_dx, Tensor* dw,
                                bool accumulate_dw) {
  const int64_t rows = x.dim(0), c = x.dim(1);
  const Scratch<float> scratch = row_sums(dw ? rows : 0, c);
  cuda::rms_norm_grad(stream_, in(x, c), in(w, c), rstd.data<float>(), in(dy, c),
                      out(dx, c, accumulate_dx), out(dw, c, accumulate_dw), rows, c,
                      scratch.data());
}

void CudaBackend::softmax(const Tensor& x, Tensor& y) {
  if (x.numel() == 0) return;
  const int64_t c = x.dim(-1);
  cuda::softmax(stream_, in(x, c), out(y, c), x.numel() / c, c);
}

void CudaBackend::softmax_grad(const Tensor& y, const Tensor& dy, Tensor& dx, bool accumulate) {
  if (y.numel() == 0) return;
  const int64_t c = y.dim(-1);
  cuda::softmax_grad(stream_, in(y, c), in(dy, c), out(dx, c, accumulate), y.numel() / c, c);
}

void CudaBackend::swiglu(const Tensor& x, Tensor& y) {
  const int64_t f = x.dim(1) / 2;
  cuda::swiglu(stream_, in(x, f), out(y, f), x.dim(0), f);
}

void CudaBackend::swiglu_grad(const Tensor& x, const Tensor& dy, Tensor& dx, bool accumulate) {
  const int64_t f = x.dim(1) / 2;
  cuda::swiglu_grad(stream_, in(x, f), in(dy, f), out(dx, f, accumulate), x.dim(0), f);
}

void CudaBackend::rope(const Tensor& x, const Tensor& cos, const Tensor& sin, const Heads& heads,
                       bool inverse, Tensor& y, bool accumulate) {
  const int64_t half = heads.head_dim / 2;
  cuda::rope(stream_, in(x, half), cos.data<float>(), sin.data<float>(), layout(heads), inverse,
             out(y, half, accumulate), x.dim(0) * x.dim(1), x.dim(1));
}

void CudaBackend::dropout(const Tensor& x, float p, const DropoutKey& key, Tensor& y,
                          bool accumulate) {
  if (x.numel() == 0) return;
  const int64_t samples = x.dim(0), per_sample = x.numel() / samples;
  cuda::dropout(stream_, in(x, per_sample), p, key.stream, key.scalars,
                out(y, per_sample, accumulate), samples, per_sample);
}

std::string CudaBackend::use_attention(const std::string& wanted, const Heads& heads, DType type,
                                       int64_t b, int64_t t) {
  std::string reason = "asked for";
  fused_.reset();
  if (wanted != "own") {
    if (type == DType::bf16)
      fused_ = make_fused_attention(stream_, heads, b, t, reason);
    else
      reason = "cuDNN's attention is for bf16";
  }
  if (fused_) return fused_->description();
  if (wanted == "cudnn") fail(Exit::config, "[train.attention] cudnn: {}; use auto or own", reason);
  const bool tensor_cores = type == DType::bf16 && heads.head_dim <= cuda::max_wmma_head_dim;
  return fmt::format("own kernels on {} cores ({})", tensor_cores ? "tensor" : "plain", reason);
}

void CudaBackend::attention(const Tensor& qkv, const Heads& heads, Tensor& o, Tensor& lse) {
  check(heads.head_dim <= cuda::max_head_dim,
        "[attention] head_dim {}; at most {} is right for device cuda", heads.head_dim,
        cuda::max_head_dim);
  if (qkv.numel() == 0) return;
  if (fused_ && fused_->fits(qkv, heads)) return fused_->forward(qkv, o, lse);
  const int64_t d = heads.head_dim;
  cuda::attention(stream_, in(qkv, d), layout(heads), out(o, d), lse.data<float>(), qkv.dim(0),
                  qkv.dim(1));
}

void CudaBackend::attention_grad(const Tensor& qkv, const Heads& heads, const Tensor& o,
                                 const Tensor& lse, const Tensor& d_o, Tensor& dqkv,
                                 bool accumulate) {
  if (qkv.numel() == 0) return;
  if (fused_ && fused_->fits(qkv, heads)) {
    if (!accumulate && dqkv.dtype() == DType::bf16) return fused_->backward(qkv, o, lse, d_o, dqkv);
    Tensor written = Tensor::empty(qkv.shape(), qkv.dtype());
    fused_->backward(qkv, o, lse, d_o, written);
    return copy(written, dqkv, accumulate);
  }
  const int64_t d = heads.head_dim;
  const Scratch<float> scratch(lse.numel());
  cuda::attention_grad(stream_, in(qkv, d), layout(heads), in(o, d), lse.data<float>(), in(d_o, d),
                       out(dqkv, d, accumulate), qkv.dim(0), qkv.dim(1), scratch.data());
}

void CudaBackend::cross_entropy(const Tensor& logits, const Tensor& targets, Tensor& loss,
                                Tensor* dlogits) {
  const int64_t v = logits.dim(1);
  cuda::cross_entropy(stream_, in(logits, v), targets.data<int32_t>(), loss.data<float>(),
                      out(dlogits, v, false), logits.dim(0), v);
}

void CudaBackend::adamw(const AdamWOptions& options, const StepScalars& scalars, const Tensor& grad,
                        Tensor& param, Tensor* master, Tensor& m, Tensor& v) {
  const int64_t n = param.numel();
  float* values = master ? master->data<float>() : param.data<float>();
  cuda::adamw(stream_, {options.beta1, options.beta2, options.eps, options.weight_decay}, &scalars,
              grad.data<float>(), values, master ? out(param, cuda::group) : Out{}, m.data<float>(),
              v.data<float>(), n);
}

void CudaBackend::sgd(const SgdOptions& options, const StepScalars& scalars, const Tensor& grad,
                      Tensor& param, Tensor* master, Tensor& momentum) {
  float* values = master ? master->data<float>() : param.data<float>();
  cuda::sgd(stream_, {options.momentum, options.weight_decay}, &scalars, grad.data<float>(), values,
            master ? out(param, cuda::group) : Out{}, momentum.data<float>(), param.numel());
}

void CudaBackend::cell_norms(const Tensor& x, Tensor& partials) {
  cuda::cell_norms(stream_, x.data<float>(), partials.data<double>(), x.numel());
}

void CudaBackend::move(const void* from, void* to, size_t bytes) {
  cuda::move(stream_, from, to, bytes);
}

void CudaBackend::zero(void* at, size_t bytes) {
  cuda::zero(stream_, at, bytes);
}

void CudaBackend::add(const float* x, float* sum, int64_t n) {
  cuda::add(stream_, x, sum, n);
}

// A kernel sums a subtree; what is larger is cut where the tree is.
void CudaBackend::tree_sum(std::span<const float* const> parts, std::span<float* const> outs,
                           int64_t n) {
  if (parts.size() <= cuda::most_parts) {
    cuda::tree_sum(stream_, parts.data(), static_cast<int>(parts.size()), outs[0], n);
  } else {
    const size_t half = std::bit_ceil(parts.size()) / 2;
    const Scratch<float> left(n), right(n);
    float* sums[] = {left.data(), right.data()};
    tree_sum(parts.first(half), {&sums[0], 1}, n);
    tree_sum(parts.subspan(half), {&sums[1], 1}, n);
    cuda::tree_sum(stream_, sums, 2, outs[0], n);
  }
  for (float* out : outs.subspan(1)) move(outs[0], out, static_cast<size_t>(n) * sizeof(float));
}

void CudaBackend::encode(const CellCodec& codec, const CodecRun& run, const float* x,
                         std::byte* wire, const WireTail& tail, float* rest) {
  cuda::encode(stream_, codec, run, x, wire, tail, rest);
}

void CudaBackend::decode(const CellCodec& codec, const CodecRun& run, const std::byte* wire,
                         int64_t first, int64_t count, float* out) {
  cuda::decode(stream_, codec, run, wire, first, count, out);
}

void CudaBackend::average(float decay, const float* past, float* x, int64_t n) {
  cuda::average(stream_, decay, past, x, n);
}

void CudaBackend::root_powers(const float* v, uint8_t* powers, int64_t n) {
  cuda::root_powers(stream_, v, powers, n);
}

void CudaBackend::scale_by_powers(const uint8_t* powers, bool divide, float* x, int64_t n) {
  cuda::scale_by_powers(stream_, powers, divide, x, n);
}

}  // namespace lockstep
