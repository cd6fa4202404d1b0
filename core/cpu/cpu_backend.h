// CpuBackend: the kernels of backend.h for the host processor, one file per family (README.md lists
// them). This header only declares; what a kernel means is said in backend.h.
#pragma once

#include "core/backend.h"

namespace lockstep {

class CpuBackend : public Backend {
 public:
  const char* name() const override { return "cpu"; }
  Stream& stream() override { return stream_; }
  int64_t piece() const override { return cell_size; }

  void fill(Tensor& out, float value) override;
  void copy(const Tensor& x, Tensor& out, bool accumulate) override;
  void unary(const Unary& f, const Tensor& x, Tensor& y) override;
  void unary_grad(const Unary& f, const Tensor& x, const Tensor& dy, Tensor& dx,
                  bool accumulate) override;
  void binary(const Binary& f, const Tensor& a, const Tensor& b, Tensor& y) override;
  void binary_grad(const Binary& f, const Tensor& a, const Tensor& b, const Tensor& dy, bool second,
                   Tensor& d, bool accumulate) override;
  void reduce(Reduction r, const Tensor& x, Tensor& y, bool accumulate) override;
  void gemm(const Tensor& a, const Tensor& b, Tensor& out, const GemmOptions& options) override;
  void gemm_gelu(const Tensor& a, const Tensor& b, const Tensor* bias, const Unary& gelu,
                 Tensor& pre, Tensor& y) override;
  void gemm_gelu_grad(const Tensor& a, const Tensor& b, const Unary& gelu, const Tensor& pre,
                      Tensor& dpre, Tensor* db, bool accumulate_db) override;
  void sum_rows(const Tensor& dy, Tensor& db, bool accumulate) override;
  void gelu_bias_grad(const Unary& gelu, const Tensor& pre, const Tensor& dy, Tensor& dpre,
                      Tensor* db, bool accumulate_db) override;
  void embedding(const Tensor& table, const Tensor& ids, Tensor& y) override;
  void embedding_grad(const Tensor& ids, const Tensor& dy, Tensor& dtable,
                      bool accumulate) override;
  void layer_norm(const Tensor& x, const Tensor& w, const Tensor& b, float eps, Tensor& y,
                  Tensor& mean, Tensor& rstd) override;
  void layer_norm_grad(const Tensor& x, const Tensor& w, const Tensor& mean, const Tensor& rstd,
                       const Tensor& dy, Tensor* dx, bool accumulate_dx, Tensor* dw,
                       bool accumulate_dw, Tensor* db, bool accumulate_db) override;
  void rms_norm(const Tensor& x, const Tensor& w, float eps, Tensor& y, Tensor& rstd) override;
  void rms_norm_grad(const Tensor& x, const Tensor& w, const Tensor& rstd, const Tensor& dy,
                     Tensor* dx, bool accumulate_dx, Tensor* dw, bool accumulate_dw) override;
  void softmax(const Tensor& x, Tensor& y) override;
  void softmax_grad(const Tensor& y, const Tensor& dy, Tensor& dx, bool accumulate) override;
  void swiglu(const Tensor& x, Tensor& y) override;
  void swiglu_grad(const Tensor& x, const Tensor& dy, Tensor& dx, bool accumulate) override;
  void rope(const Tensor& x, const Tensor& cos, const Tensor& sin, const Heads& heads, bool inverse,
            Tensor& y, bool accumulate) override;
  void dropout(const Tensor& x, float p, const DropoutKey& key, Tensor& y,
               bool accumulate) override;
  void attention(const Tensor& qkv, const Heads& heads, Tensor& o, Tensor& lse) override;
  void attention_grad(const Tensor& qkv, const Heads& heads, const Tensor& o, const Tensor& lse,
                      const Tensor& d_o, Tensor& dqkv, bool accumulate) override;
  void cross_entropy(const Tensor& logits, const Tensor& targets, Tensor& loss,
                     Tensor* dlogits) override;
  void adamw(const AdamWOptions& options, const StepScalars& scalars, const Tensor& grad,
             Tensor& param, Tensor* master, Tensor& m, Tensor& v) override;
  void sgd(const SgdOptions& options, const StepScalars& scalars, const Tensor& grad, Tensor& param,
           Tensor* master, Tensor& momentum) override;
  void cell_norms(const Tensor& x, Tensor& partials) override;
  void encode(const CellCodec& codec, const CodecRun& run, const float* x, std::byte* wire,
              const WireTail& tail, float* rest) override;
  void decode(const CellCodec& codec, const CodecRun& run, const std::byte* wire, int64_t first,
              int64_t count, float* out) override;
  void average(float decay, const float* past, float* x, int64_t n) override;
  void root_powers(const float* v, uint8_t* powers, int64_t n) override;
  void scale_by_powers(const uint8_t* powers, bool divide, float* x, int64_t n) override;
  void move(const void* from, void* to, size_t bytes) override;
  void zero(void* at, size_t bytes) override;
  void add(const float* x, float* sum, int64_t n) override;
  void tree_sum(std::span<const float* const> parts, std::span<float* const> outs,
                int64_t n) override;

 private:
  HostStream stream_;
};

}  // namespace lockstep
