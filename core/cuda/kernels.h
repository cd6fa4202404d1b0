// The launchers: one for each kernel of core/backend.h, in the .cu file named above it. A launcher
// puts its kernel on the stream and returns; what a kernel means is said in core/backend.h, shapes
// are repeated here. `scratch` is device memory that is free again when the kernel has run.
#pragma once

#include "core/codecs.h"
#include "core/cuda/views.h"
#include "core/functors.h"
#include "core/step_scalars.h"

struct CUstream_st;

namespace lockstep::cuda {

using Stream = CUstream_st*;

// ---- elementwise.cu
void fill(Stream s, const Dims<1>& dims, const Out& out, float value);
void copy(Stream s, const Dims<2>& dims, const In& x, const Out& out);
void unary(Stream s, const Unary& f, const Dims<2>& dims, const In& x, const Out& y);
void unary_grad(Stream s, const Unary& f, const Dims<3>& dims, const In& x, const In& dy,
                const Out& dx);
// x [rows, 2 columns], y [rows, columns]
void swiglu(Stream s, const In& x, const Out& y, int64_t rows, int64_t columns);
void swiglu_grad(Stream s, const In& x, const In& dy, const Out& dx, int64_t rows, int64_t columns);
// ---- binary.cu
void binary(Stream s, const Binary& f, const Dims<3>& dims, const In& a, const In& b, const Out& y);
void binary_grad(Stream s, const Binary& f, const Dims<4>& dims, const In& a, const In& b,
                 const In& dy, bool second, const Out& d);

// ---- reduce.cu
enum class Fold { sum, mean, max };
// outer: y's elements as {offset in x, offset in y}; inner: what is reduced below each.
// scratch: reduce_pieces(count) doubles for each element of y, where count is inner's elements.
int64_t reduce_pieces(int64_t count);
void reduce(Stream s, Fold fold, const Dims<2>& outer, const Dims<1>& inner, const In& x,
            const Out& y, double* scratch);
// Sums over rows go by pieces of rows; scratch: row_pieces(rows) * columns floats for each sum.
int64_t row_pieces(int64_t rows);
void sum_rows(Stream s, const In& dy, int64_t rows, int64_t columns, const Out& db, float* scratch);
// db.data null: not wanted.
void gelu_bias_grad(Stream s, bool exact, const In& pre, const In& dy, const Out& dpre,
                    const Out& db, int64_t rows, int64_t columns, float* scratch);

// ---- norm.cu; data null: not wanted; scratch as for sum_rows, for dw and db
void layer_norm(Stream s, const In& x, const In& w, const In& b, float eps, const Out& y,
                float* mean, float* rstd, int64_t rows, int64_t columns);
void layer_norm_grad(Stream s, const In& x, const In& w, const float* mean, const float* rstd,
                     const In& dy, const Out& dx, const Out& dw, const Out& db, int64_t rows,
                     int64_t columns, float* scratch);
void rms_norm(Stream s, const In& x, const In& w, float eps, const Out& y, float* rstd,
              int64_t rows, int64_t columns);
void rms_norm_grad(Stream s, const In& x, const In& w, const float* rstd, const In& dy,
                   const Out& dx, const Out& dw, int64_t rows, int64_t columns, float* scratch);

// ---- softmax.cu
void softmax(Stream s, const In& x, const Out& y, int64_t rows, int64_t columns);
void softmax_grad(Stream s, const In& y, const In& dy, const Out& dx, int64_t rows,
                  int64_t columns);
void cross_entropy(Stream s, const In& logits, const int32_t* targets, float* loss,
                   const Out& dlogits, int64_t rows, int64_t columns);

// ---- embedding.cu
void embedding(Stream s, const In& table, const int32_t* ids, const Out& y, int64_t n, int64_t d);
void embedding_grad(Stream s, const int32_t* ids, const In& dy, const Out& dtable, int64_t n,
                    int64_t d);
void rope(Stream s, const In& x, const float* cos, const float* sin, const HeadLayout& heads,
          bool inverse, const Out& y, int64_t rows, int64_t t);
void dropout(Stream s, const In& x, float p, uint64_t stream_key, const StepScalars* scalars,
             const Out& y, int64_t samples, int64_t per_sample);

// ---- attention.cu; head_dim at most max_head_dim; scratch: b * n_head * t floats. bf16 heads of
// at most max_wmma_head_dim go to the tensor cores (attention_wmma.cu).
constexpr int64_t max_head_dim = 256, max_wmma_head_dim = 128;
void attention(Stream s, const In& qkv, const HeadLayout& heads, const Out& o, float* lse,
               int64_t b, int64_t t);
void attention_grad(Stream s, const In& qkv, const HeadLayout& heads, const In& o, const float* lse,
                    const In& d_o, const Out& dqkv, int64_t b, int64_t t, float* scratch);

// ---- optimizer.cu; param.data null where the fp32 master is the parameter itself
struct AdamW {
  float beta1, beta2, eps, weight_decay;
};
struct Sgd {
  float momentum, weight_decay;
};
void adamw(Stream s, const AdamW& options, const StepScalars* scalars, const float* grad,
           float* master, const Out& param, float* m, float* v, int64_t n);
void sgd(Stream s, const Sgd& options, const StepScalars* scalars, const float* grad, float* master,
         const Out& param, float* momentum, int64_t n);
void cell_norms(Stream s, const float* x, double* partials, int64_t n);

// ---- flat.cu
void move(Stream s, const void* from, void* to, size_t bytes);
void zero(Stream s, void* at, size_t bytes);
void add(Stream s, const float* x, float* sum, int64_t n);
// parts: host memory with `count` pointers, at most most_parts
constexpr int most_parts = 16;
void tree_sum(Stream s, const float* const* parts, int count, float* out, int64_t n);

// ---- codecs.cu
void encode(Stream s, const CellCodec& codec, const CodecRun& run, const float* x, std::byte* wire,
            const WireTail& tail, float* rest);
void decode(Stream s, const CellCodec& codec, const CodecRun& run, const std::byte* wire,
            int64_t first, int64_t count, float* out);
void average(Stream s, float decay, const float* past, float* x, int64_t n);
void root_powers(Stream s, const float* v, uint8_t* powers, int64_t n);
void scale_by_powers(Stream s, const uint8_t* powers, bool divide, float* x, int64_t n);

}  // namespace lockstep::cuda
