// Backend: the kernels, one pure virtual each; a body in cpu/ and (where CUDA is built) one in
// cuda/. Kernels compute; they check nothing, allocate only scratch and know no graph: checking and
// gradient rules are in ops/, once for all devices. A backend that lacks a kernel does not compile.
//
// Conventions. Tensors are contiguous unless a comment says otherwise. Floating inputs and outputs
// are fp32 or bf16 (all of one call the same unless typed here); arithmetic and sums are fp32. "T_"
// marks that activation type. An output called d* is a gradient: with `accumulate` the kernel adds
// to it, without, it writes every element. Gradients of parameters (dw, db, dtable) are always
// fp32. Threads change no result but some of oneDNN's. Read next: ops/README.md, cpu/README.md.
#pragma once

#include <cstdint>
#include <span>

#include "core/codecs.h"
#include "core/functors.h"
#include "core/step_scalars.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace lockstep {

struct GemmOptions {
  const Tensor* bias = nullptr;   // [n], T_, added to every row
  const Tensor* alpha = nullptr;  // [1] fp32 where the kernel runs; multiplies the product
  bool accumulate = false;        // out += instead of out =
};

// Which random bits dropout draws: element e of global sample s depends on (seed, module, s, e) and
// the step, so on neither rank count nor micro batch size. Step and first sample are those of the
// scalars when the kernel runs, so backward must come before they change.
struct DropoutKey {
  uint64_t stream = 0;  // stream_key(seed, module name)
  const StepScalars* scalars = nullptr;
};

struct AdamWOptions {
  float beta1, beta2, eps, weight_decay;
};
struct SgdOptions {
  float momentum, weight_decay;
};

// Layout of packed attention heads: a row of [B, T, (n_head + 2 n_kv_head) * head_dim] holds all
// queries, then all keys, then all values.
struct Heads {
  int64_t n_head, n_kv_head, head_dim;
  int64_t packed() const { return (n_head + 2 * n_kv_head) * head_dim; }
};

enum class Reduction { sum, mean, max };

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;
  virtual std::string description() const { return name(); }  // of the device, for the log
  // The queue that kernels join.
  virtual Stream& stream() = 0;
  // How many elements one kernel should get where the caller may cut: a cell where the next kernel
  // finds it in the cache, everything where each kernel has to be launched. A multiple of
  // cell_size.
  virtual int64_t piece() const = 0;

  // Says who computes attention from now on, of b samples of t tokens: "own" kernels, "cudnn", or
  // "auto": cuDNN where it is and has a deterministic engine. Returns what was chosen and why, for
  // the log. Other shapes stay with the own kernels. Exit::config if cuDNN was asked for and
  // cannot.
  virtual std::string use_attention(const std::string& wanted, const Heads& heads, DType type,
                                    int64_t b, int64_t t);

  // ---- movement and elementwise; any strides, any mix of fp32 and bf16
  virtual void fill(Tensor& out, float value) = 0;
  virtual void copy(const Tensor& x, Tensor& out, bool accumulate) = 0;  // same shape
  virtual void unary(const Unary& f, const Tensor& x, Tensor& y) = 0;
  virtual void unary_grad(const Unary& f, const Tensor& x, const Tensor& dy, Tensor& dx,
                          bool accumulate) = 0;
  // a and b broadcast to y's shape (stride 0 where they repeat).
  virtual void binary(const Binary& f, const Tensor& a, const Tensor& b, Tensor& y) = 0;
  // d (y's shape) = dy * df/da, or df/db if `second`.
  virtual void binary_grad(const Binary& f, const Tensor& a, const Tensor& b, const Tensor& dy,
                           bool second, Tensor& d, bool accumulate) = 0;
  // Reduces the dimensions of x (any strides) that have size 1 in y.
  virtual void reduce(Reduction r, const Tensor& x, Tensor& y, bool accumulate) = 0;

  // ---- matrices
  // out [.., m, n] = alpha * a [.., m, k] b [.., k, n] + bias. a and b: one of the last two strides
  // is 1 (so either may be a transposed view); at most one batch dimension. out: fp32 or a's type.
  virtual void gemm(const Tensor& a, const Tensor& b, Tensor& out, const GemmOptions& options) = 0;
  // pre = a b + bias (null: none) and y = gelu(pre), all [m, n] of a's type.
  virtual void gemm_gelu(const Tensor& a, const Tensor& b, const Tensor* bias, const Unary& gelu,
                         Tensor& pre, Tensor& y) = 0;
  // dpre [m, n] = a b * gelu'(pre), of a's type, and, if db, db [n] = sum of its rows.
  virtual void gemm_gelu_grad(const Tensor& a, const Tensor& b, const Unary& gelu,
                              const Tensor& pre, Tensor& dpre, Tensor* db, bool accumulate_db) = 0;
  // db [n] fp32 = sum over the rows of dy [m, n].
  virtual void sum_rows(const Tensor& dy, Tensor& db, bool accumulate) = 0;
  // dpre [m, n] = dy * gelu'(pre) and, if db, db [n] = sum of its rows, in one pass. dpre may be
  // dy.
  virtual void gelu_bias_grad(const Unary& gelu, const Tensor& pre, const Tensor& dy, Tensor& dpre,
                              Tensor* db, bool accumulate_db) = 0;

  // ---- layers
  // y [n, d] = table [v, d] at ids [n]; 0 <= id < v is the caller's promise.
  virtual void embedding(const Tensor& table, const Tensor& ids, Tensor& y) = 0;
  virtual void embedding_grad(const Tensor& ids, const Tensor& dy, Tensor& dtable,
                              bool accumulate) = 0;
  // Rows of x [r, c]; w, b [c] T_; mean, rstd [r] fp32 are kept for the gradient.
  virtual void layer_norm(const Tensor& x, const Tensor& w, const Tensor& b, float eps, Tensor& y,
                          Tensor& mean, Tensor& rstd) = 0;
  // Each of dx, dw, db may be null.
  virtual void layer_norm_grad(const Tensor& x, const Tensor& w, const Tensor& mean,
                               const Tensor& rstd, const Tensor& dy, Tensor* dx, bool accumulate_dx,
                               Tensor* dw, bool accumulate_dw, Tensor* db, bool accumulate_db) = 0;
  virtual void rms_norm(const Tensor& x, const Tensor& w, float eps, Tensor& y, Tensor& rstd) = 0;
  virtual void rms_norm_grad(const Tensor& x, const Tensor& w, const Tensor& rstd, const Tensor& dy,
                             Tensor* dx, bool accumulate_dx, Tensor* dw, bool accumulate_dw) = 0;
  // Over the last dimension.
  virtual void softmax(const Tensor& x, Tensor& y) = 0;
  virtual void softmax_grad(const Tensor& y, const Tensor& dy, Tensor& dx, bool accumulate) = 0;
  // y [r, f] = silu(x[:, :f]) * x[:, f:] for x [r, 2f].
  virtual void swiglu(const Tensor& x, Tensor& y) = 0;
  virtual void swiglu_grad(const Tensor& x, const Tensor& dy, Tensor& dx, bool accumulate) = 0;
  // Rotates queries and keys of packed x [b, t, heads.packed()] by cos, sin [>= t, head_dim / 2]
  // fp32 (pairs (i, i + head_dim / 2)), copies the values. `inverse` rotates back: the gradient.
  virtual void rope(const Tensor& x, const Tensor& cos, const Tensor& sin, const Heads& heads,
                    bool inverse, Tensor& y, bool accumulate) = 0;
  // x [b, ...]: keeps an element with probability 1 - p and divides it by 1 - p. Its own gradient.
  virtual void dropout(const Tensor& x, float p, const DropoutKey& key, Tensor& y,
                       bool accumulate) = 0;
  // Causal attention on packed qkv [b, t, heads.packed()]; o [b, t, n_head * head_dim]; lse [b,
  // n_head, t] fp32. Scores are scaled by 1 / sqrt(head_dim). Holds tiles, never t x t.
  virtual void attention(const Tensor& qkv, const Heads& heads, Tensor& o, Tensor& lse) = 0;
  virtual void attention_grad(const Tensor& qkv, const Heads& heads, const Tensor& o,
                              const Tensor& lse, const Tensor& d_o, Tensor& dqkv,
                              bool accumulate) = 0;
  // Per row of logits [r, v] fp32: loss [r] fp32 = logsumexp - logit of target [r] i32, and, if
  // dlogits (T_), softmax - onehot. A target of -1 gives 0 for both.
  virtual void cross_entropy(const Tensor& logits, const Tensor& targets, Tensor& loss,
                             Tensor* dlogits) = 0;

  // ---- optimizer, over flat memory of any one length
  // param is T_; master fp32, or null if param is fp32 and so its own master; grad, m, v fp32.
  virtual void adamw(const AdamWOptions& options, const StepScalars& scalars, const Tensor& grad,
                     Tensor& param, Tensor* master, Tensor& m, Tensor& v) = 0;
  virtual void sgd(const SgdOptions& options, const StepScalars& scalars, const Tensor& grad,
                   Tensor& param, Tensor* master, Tensor& momentum) = 0;
  // partials [cells] f64: the sum of squares of each cell of x fp32 (exact products, fp64 sums, in
  // a fixed order). Not finite exactly if the cell holds a non-finite element.
  virtual void cell_norms(const Tensor& x, Tensor& partials) = 0;

  // ---- bytes and floats in a row, for sums over ranks; on the CPU by the calling thread alone
  virtual void move(const void* from, void* to, size_t bytes) = 0;  // no overlap
  virtual void zero(void* at, size_t bytes) = 0;
  virtual void add(const float* x, float* sum, int64_t n) = 0;  // sum += x
  // Every one of outs gets the sum of `parts`, n floats each, as a balanced binary tree in their
  // order: ((0+1)+(2+3))+4. An out may be one of the parts.
  virtual void tree_sum(std::span<const float* const> parts, std::span<float* const> outs,
                        int64_t n) = 0;

  // ---- codecs, over a run of cells
  // Writes x [run.elements] to the place_bytes() at `wire`, and what takes as many bytes as it
  // needs to `tail`, which may be empty for a codec that has nothing of the kind; wire and tail are
  // 16-byte aligned. `rest` [run.elements], if it is not null, gets x - decoded, rounded to fp32:
  // what was not sent. It may be x itself, but not overlap it otherwise.
  //
  // Cells are encoded independently of each other. A cell with a NaN or an infinity decodes to one
  // with a NaN or an infinity, so whoever looks at the sum sees that the step must be skipped;
  // `rest` is worthless then. Of finite elements every backend writes the same bits.
  virtual void encode(const CellCodec& codec, const CodecRun& run, const float* x, std::byte* wire,
                      const WireTail& tail, float* rest) = 0;
  // Overwrites `out` with what was encoded of the cells [first, first + count) of the run. The tail
  // lies from `wire` where it lay for encode.
  virtual void decode(const CellCodec& codec, const CodecRun& run, const std::byte* wire,
                      int64_t first, int64_t count, float* out) = 0;
  // x [n] = decay * past + (1 - decay) * x; past null: zeros. By the calling thread alone.
  virtual void average(float decay, const float* past, float* x, int64_t n) = 0;
  // Powers of two near the roots of second moments v [n], as codecs/powers.h has them; and x [n]
  // times those, or divided by them. By the calling thread alone.
  virtual void root_powers(const float* v, uint8_t* powers, int64_t n) = 0;
  virtual void scale_by_powers(const uint8_t* powers, bool divide, float* x, int64_t n) = 0;
};

// The backend of the calling thread; the CPU's until a scope says otherwise.
Backend& backend();
Backend& cpu_backend();

class BackendScope {
 public:
  explicit BackendScope(Backend& backend);
  ~BackendScope();
  BackendScope(const BackendScope&) = delete;

 private:
  Backend* previous_;
};

}  // namespace lockstep
