// Causal attention in tiles with an online softmax, and its gradient from the kept log-sum-exp (Dao
// et al., "FlashAttention", 2022), in fp32 arithmetic on plain cores, for any head size up to 256
// (padded with zeros to 32, 64, 128 or 256). Never t x t. The gradient of the keys and values and
// that of the queries are two kernels, so each sum has one owner and no atomics: seven products
// instead of five. The reference for faster ones, and what fp32 and heads above 128 use; bf16 goes
// to the tensor cores of attention_wmma.cu.
//
// A block is 16 x 16 threads. In a product of tiles, thread (tx, ty) owns the rows
// ty * R .. ty * R + R - 1 and the columns tx, tx + 16, ...; rows of shared tiles have an odd
// length, so neither access pattern makes two threads of a warp meet in a bank. Read next:
// attention_wmma.cu.
#include "core/cuda/attention.h"

namespace lockstep::cuda {

namespace {

constexpr int side = 16, threads = side * side;

// Rows [first, first + rows) of a head, `step` apart from `origin`, times `factor`, as a shared
// tile [rows, D + 1]; zero beyond t and d.
template <int D>
__device__ void load_tile(const Attention& a, const In& in, int64_t origin, int64_t step,
                          int64_t first, int rows, float factor, float* tile) {
  constexpr int per_row = D / group;
  for (int g = threadIdx.x; g < rows * per_row; g += threads) {
    const int r = g / per_row, column = g % per_row * group;
    const int n = first + r < a.t ? in_group(column, a.d) : 0;
    float x[group] = {};
    if (n > 0) load(in, origin + (first + r) * step + column, n, x);
#pragma unroll
    for (int i = 0; i < group; ++i) tile[r * (D + 1) + column + i] = factor * x[i];
  }
}

// sum [R][C] = rows ty * R + i of x times rows tx + 16 j of y, both [.., D + 1].
template <int D, int R, int C>
__device__ void rows_times_rows(const float* x, const float* y, int tx, int ty,
                                float (&sum)[R][C]) {
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int j = 0; j < C; ++j) sum[i][j] = 0;
#pragma unroll 4
  for (int e = 0; e < D; ++e) {
    float xs[R], ys[C];
#pragma unroll
    for (int i = 0; i < R; ++i) xs[i] = x[(ty * R + i) * (D + 1) + e];
#pragma unroll
    for (int j = 0; j < C; ++j) ys[j] = y[(tx + side * j) * (D + 1) + e];
#pragma unroll
    for (int i = 0; i < R; ++i)
#pragma unroll
      for (int j = 0; j < C; ++j) sum[i][j] += xs[i] * ys[j];
  }
}

// sum [R][D / 16] += for every m: p(ty * R + i, m) times row m of x [M, D + 1]. p is at
// p[i * row_step + m * column_step], so its transpose costs nothing.
template <int D, int R, int M>
__device__ void add_product(const float* p, int row_step, int column_step, const float* x, int tx,
                            int ty, float (&sum)[R][D / side]) {
#pragma unroll 4
  for (int m = 0; m < M; ++m) {
    float factor[R];
#pragma unroll
    for (int i = 0; i < R; ++i) factor[i] = p[(ty * R + i) * row_step + m * column_step];
#pragma unroll
    for (int j = 0; j < D / side; ++j) {
      const float y = x[m * (D + 1) + tx + side * j];
#pragma unroll
      for (int i = 0; i < R; ++i) sum[i][j] += factor[i] * y;
    }
  }
}

// Rows ty * R + i from `first` on, columns tx + 16 j, of a head.
template <int D, int R>
__device__ void store_rows(const Attention& a, const Out& out, int64_t origin, int64_t step,
                           int64_t first, int tx, int ty, const float (&x)[R][D / side]) {
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int64_t row = first + ty * R + i;
    if (row >= a.t) continue;
#pragma unroll
    for (int j = 0; j < D / side; ++j)
      if (tx + side * j < a.d) store(out, origin + row * step + tx + side * j, x[i][j]);
  }
}

// Over the 16 threads of one ty: half a warp.
__device__ float half_warp_sum(float v) {
#pragma unroll
  for (int lane = side / 2; lane > 0; lane /= 2) v += __shfl_xor_sync(all_lanes, v, lane);
  return v;
}
__device__ float half_warp_max(float v) {
#pragma unroll
  for (int lane = side / 2; lane > 0; lane /= 2) v = fmaxf(v, __shfl_xor_sync(all_lanes, v, lane));
  return v;
}

// Launch: grid (query tiles, n_head, b), longest first. Shared: q, k, v tiles and the
// probabilities, [BQ + 2 BK, D + 1] and [BQ, BK + 1].
template <int D, int BQ, int BK>
__global__ void __launch_bounds__(threads) attention_kernel(Attention a) {
  constexpr int R = BQ / side, C = BK / side;
  const int tx = threadIdx.x % side, ty = threadIdx.x / side;
  const int64_t head = blockIdx.y, b = blockIdx.z, kv = head / a.repeat;
  const int64_t first = int64_t{gridDim.x - 1 - blockIdx.x} * BQ;
  float* q = dynamic_shared<float>();
  float *k = q + BQ * (D + 1), *v = k + BK * (D + 1), *p = v + BK * (D + 1);
  load_tile<D>(a, a.qkv, a.q(b, head), a.packed, first, BQ, a.scale, q);

  float max[R], sum[R], out[R][D / side];
#pragma unroll
  for (int i = 0; i < R; ++i) {
    max[i] = -INFINITY;
    sum[i] = 0;
#pragma unroll
    for (int j = 0; j < D / side; ++j) out[i][j] = 0;
  }
  for (int64_t key = 0; key < first + BQ && key < a.t; key += BK) {
    __syncthreads();  // the tiles before are done with
    load_tile<D>(a, a.qkv, a.k(b, kv), a.packed, key, BK, 1.0f, k);
    load_tile<D>(a, a.qkv, a.v(b, kv), a.packed, key, BK, 1.0f, v);
    __syncthreads();
    float s[R][C];
    rows_times_rows<D>(q, k, tx, ty, s);
#pragma unroll
    for (int i = 0; i < R; ++i) {
      float most = max[i];
#pragma unroll
      for (int j = 0; j < C; ++j) {
        if (key + tx + side * j > first + ty * R + i) s[i][j] = -INFINITY;  // the future
        most = fmaxf(most, s[i][j]);
      }
      most = half_warp_max(most);  // finite: key 0 is in the first tile
      const float shrink = fast_exp(max[i] - most);
      float added = 0;
#pragma unroll
      for (int j = 0; j < C; ++j) {
        const float e = fast_exp(s[i][j] - most);
        p[(ty * R + i) * (BK + 1) + tx + side * j] = e;
        added += e;
      }
      sum[i] = sum[i] * shrink + half_warp_sum(added);
      max[i] = most;
#pragma unroll
      for (int j = 0; j < D / side; ++j) out[i][j] *= shrink;
    }
    __syncwarp();  // a row of p is written and read by one half warp
    add_product<D, R, BK>(p, BK + 1, 1, v, tx, ty, out);
  }
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const float factor = 1.0f / sum[i];
#pragma unroll
    for (int j = 0; j < D / side; ++j) out[i][j] *= factor;
    const int64_t row = first + ty * R + i;
    if (tx == 0 && row < a.t) a.lse[a.row(b, head) + row] = max[i] + logf(sum[i]);
  }
  store_rows<D, R>(a, a.out, a.result(b, head), a.n_head * a.d, first, tx, ty, out);
}

// delta = sum over a row of d_o o. Launch: a warp for each row of [b, t, n_head]. Bytes per
// element: the least possible (o and d_o once).
__global__ void __launch_bounds__(threads) delta_kernel(Attention a, int64_t rows) {
  const int64_t row = int64_t{blockIdx.x} * (threads / 32) + threadIdx.x / 32;
  if (row >= rows) return;  // the whole warp
  float dot = 0;
  for (int64_t i = threadIdx.x % 32 * group; i < a.d; i += 32 * group) {
    float x[group], y[group];
    load(a.o, row * a.d + i, in_group(i, a.d), x);
    load(a.d_o, row * a.d + i, in_group(i, a.d), y);
#pragma unroll
    for (int k = 0; k < group; ++k) dot += x[k] * y[k];
  }
  dot = warp_sum(dot);
  const int64_t head = row % a.n_head, b = row / a.n_head / a.t, at = row / a.n_head % a.t;
  if (threadIdx.x % 32 == 0) a.delta[a.row(b, head) + at] = dot;
}

// For one tile of queries and keys: p = e^(s - lse) and ds = p (dp - delta), both to shared memory
// [BQ, BK + 1]. q is scaled, so ds k scale is dq and ds^T q is dk.
template <int D, int BQ, int BK>
__device__ void score_gradient(const Attention& a, const float* q, const float* k, const float* v,
                               const float* d_o, int64_t statistics, int64_t first, int64_t key,
                               int tx, int ty, float* p, float* ds) {
  constexpr int R = BQ / side, C = BK / side;
  float s[R][C], dp[R][C];
  rows_times_rows<D>(q, k, tx, ty, s);
  rows_times_rows<D>(d_o, v, tx, ty, dp);
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int64_t row = first + ty * R + i;
    const float lse = row < a.t ? a.lse[statistics + row] : 0.0f;
    const float delta = row < a.t ? a.delta[statistics + row] : 0.0f;
#pragma unroll
    for (int j = 0; j < C; ++j) {
      const bool seen = key + tx + side * j <= row && row < a.t;
      const float e = seen ? fast_exp(s[i][j] - lse) : 0.0f;
      const int at = (ty * R + i) * (BK + 1) + tx + side * j;
      if (p) p[at] = e;
      ds[at] = e * (dp[i][j] - delta);
    }
  }
}

// Launch: grid (key tiles, n_kv_head, b); a block goes through the queries of its group's heads in
// order. Shared: q, d_o [BQ, D + 1], k, v [BK, D + 1], p, ds [BQ, BK + 1].
template <int D, int BQ, int BK>
__global__ void __launch_bounds__(threads) attention_grad_kv_kernel(Attention a) {
  constexpr int R = BK / side;
  const int tx = threadIdx.x % side, ty = threadIdx.x / side;
  const int64_t kv = blockIdx.y, b = blockIdx.z, key = int64_t{blockIdx.x} * BK;
  float* q = dynamic_shared<float>();
  float *d_o = q + BQ * (D + 1), *k = d_o + BQ * (D + 1), *v = k + BK * (D + 1);
  float *p = v + BK * (D + 1), *ds = p + BQ * (BK + 1);
  load_tile<D>(a, a.qkv, a.k(b, kv), a.packed, key, BK, 1.0f, k);
  load_tile<D>(a, a.qkv, a.v(b, kv), a.packed, key, BK, 1.0f, v);
  float dk[R][D / side] = {}, dv[R][D / side] = {};
  for (int64_t head = kv * a.repeat; head < (kv + 1) * a.repeat; ++head)
    for (int64_t first = key / BQ * BQ; first < a.t; first += BQ) {
      __syncthreads();  // the tiles before are done with
      load_tile<D>(a, a.qkv, a.q(b, head), a.packed, first, BQ, a.scale, q);
      load_tile<D>(a, a.d_o, a.result(b, head), a.n_head * a.d, first, BQ, 1.0f, d_o);
      __syncthreads();
      score_gradient<D, BQ, BK>(a, q, k, v, d_o, a.row(b, head), first, key, tx, ty, p, ds);
      __syncthreads();
      add_product<D, R, BQ>(p, 1, BK + 1, d_o, tx, ty, dv);
      add_product<D, R, BQ>(ds, 1, BK + 1, q, tx, ty, dk);
    }
  store_rows<D, R>(a, a.dqkv, a.k(b, kv), a.packed, key, tx, ty, dk);
  store_rows<D, R>(a, a.dqkv, a.v(b, kv), a.packed, key, tx, ty, dv);
}

// Launch: grid (query tiles, n_head, b), longest first. Shared: as above without p.
template <int D, int BQ, int BK>
__global__ void __launch_bounds__(threads) attention_grad_q_kernel(Attention a) {
  constexpr int R = BQ / side;
  const int tx = threadIdx.x % side, ty = threadIdx.x / side;
  const int64_t head = blockIdx.y, b = blockIdx.z, kv = head / a.repeat;
  const int64_t first = int64_t{gridDim.x - 1 - blockIdx.x} * BQ;
  float* q = dynamic_shared<float>();
  float *d_o = q + BQ * (D + 1), *k = d_o + BQ * (D + 1), *v = k + BK * (D + 1);
  float* ds = v + BK * (D + 1);
  load_tile<D>(a, a.qkv, a.q(b, head), a.packed, first, BQ, a.scale, q);
  load_tile<D>(a, a.d_o, a.result(b, head), a.n_head * a.d, first, BQ, 1.0f, d_o);
  float dq[R][D / side] = {};
  for (int64_t key = 0; key < first + BQ && key < a.t; key += BK) {
    __syncthreads();  // the tiles before are done with
    load_tile<D>(a, a.qkv, a.k(b, kv), a.packed, key, BK, 1.0f, k);
    load_tile<D>(a, a.qkv, a.v(b, kv), a.packed, key, BK, 1.0f, v);
    __syncthreads();
    score_gradient<D, BQ, BK>(a, q, k, v, d_o, a.row(b, head), first, key, tx, ty, nullptr, ds);
    __syncwarp();  // a row of ds is written and read by one half warp
    add_product<D, R, BK>(ds, BK + 1, 1, k, tx, ty, dq);
  }
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int j = 0; j < D / side; ++j) dq[i][j] *= a.scale;
  store_rows<D, R>(a, a.dqkv, a.q(b, head), a.packed, first, tx, ty, dq);
}

Attention describe(const In& qkv, const HeadLayout& h, int64_t t) {
  Attention a{};
  a.qkv = qkv;
  a.t = t, a.d = h.head_dim, a.packed = (h.n_head + 2 * h.n_kv_head) * h.head_dim;
  a.n_head = h.n_head, a.n_kv_head = h.n_kv_head, a.repeat = h.n_head / h.n_kv_head;
  a.scale = 1.0f / sqrtf(static_cast<float>(h.head_dim));
  return a;
}

// Tensor cores multiply bf16; on fp32 they would lose 13 bits of each factor.
bool on_tensor_cores(const Attention& a) {
  return a.qkv.narrow && a.d <= max_wmma_head_dim;
}

// Bytes of shared memory for this many rows of D and squares of probabilities.
constexpr size_t shared_bytes(int rows, int d, int squares, int bq, int bk) {
  return sizeof(float) * static_cast<size_t>(rows * (d + 1) + squares * bq * (bk + 1));
}

template <int D, int B>
void forward(Stream s, const Attention& a, int64_t b) {
  launch(attention_kernel<D, B, B>, tiles(a.t, B, a.n_head, b), dim3(threads),
         shared_bytes(3 * B, D, 1, B, B), s, a);
}

template <int D, int B>
void backward(Stream s, const Attention& a, int64_t b) {
  launch(attention_grad_kv_kernel<D, B, B>, tiles(a.t, B, a.n_kv_head, b), dim3(threads),
         shared_bytes(4 * B, D, 2, B, B), s, a);
  launch(attention_grad_q_kernel<D, B, B>, tiles(a.t, B, a.n_head, b), dim3(threads),
         shared_bytes(4 * B, D, 1, B, B), s, a);
}

}  // namespace

void attention(Stream s, const In& qkv, const HeadLayout& heads, const Out& o, float* lse,
               int64_t b, int64_t t) {
  Attention a = describe(qkv, heads, t);
  a.out = o, a.lse = lse;
  if (on_tensor_cores(a)) return attention_wmma(s, a, b);
  if (a.d <= 32) return forward<32, 64>(s, a, b);
  if (a.d <= 64) return forward<64, 64>(s, a, b);
  if (a.d <= 128) return forward<128, 64>(s, a, b);
  forward<256, 32>(s, a, b);
}

void attention_grad(Stream s, const In& qkv, const HeadLayout& heads, const In& o, const float* lse,
                    const In& d_o, const Out& dqkv, int64_t b, int64_t t, float* scratch) {
  Attention a = describe(qkv, heads, t);
  a.o = o, a.d_o = d_o, a.dqkv = dqkv;
  a.lse = const_cast<float*>(lse), a.delta = scratch;
  const int64_t rows = b * t * a.n_head;
  constexpr int64_t warps = threads / 32;
  launch(delta_kernel, dim3(static_cast<unsigned>((rows + warps - 1) / warps)), dim3(threads), 0, s,
         a, rows);
  if (on_tensor_cores(a)) return attention_grad_wmma(s, a, b);
  if (a.d <= 32) return backward<32, 64>(s, a, b);
  if (a.d <= 64) return backward<64, 64>(s, a, b);
  if (a.d <= 128) return backward<128, 32>(s, a, b);
  backward<256, 32>(s, a, b);
}

}  // namespace lockstep::cuda
