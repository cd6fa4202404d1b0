// Causal attention on tensor cores, for bf16: attention.cu's algorithm (tiles, online softmax,
// gradients in two kernels, so that each sum has one owner) with its products done by nvcuda::wmma,
// 16 x 16 x 16 at a time, factors bf16, sums fp32. Any t, heads of at most 128 (padded with zeros
// to 32, 64 or 128), any grouping of heads. Never t x t.
//
// A block is 4 warps, a warp owns 16 rows of the result. What a fragment's elements are is the
// hardware's secret, so between products a warp's *strip* [16, N] of scores goes through shared
// memory, where a row belongs to two lanes; probabilities take the place of the scores, as bf16.
// Rows of the result are rescaled by a second fragment, which has the same secret.
//
// What bounds it (sm_90, D = 64, per pair of 64 x 64 tiles, estimated): 2 products of 262 k
// multiply-adds are 128 mma of a warp, 260 cycles at the tensor cores' dense rate; their factors
// come from shared memory, 5 loads of 512 bytes per 4 mma: 640 cycles at 128 bytes per cycle;
// scores and probabilities cross it in 320 more; 4096 exponentials are some 500 issue cycles on the
// plain cores. So shared memory bounds it, at about a fifth of what wgmma and TMA reach. Global
// memory does not: a block reads 4 D bytes per key once for 64 queries, 64 FLOP per byte and more.
// Blocks per multiprocessor of sm_90: forward 3 (164 registers per thread; 49 KB of shared memory
// for D = 64, 73 KB for 128), keys' gradients 2 (214 and 254 registers), queries' gradients 3. Read
// next: gemm.cpp.
#include <mma.h>

#include "core/cuda/attention.h"

namespace lockstep::cuda {

namespace {

namespace wmma = nvcuda::wmma;

constexpr int warps = 4, threads = 32 * warps;
constexpr int side = 16;  // of a fragment
constexpr int block_rows = side * warps;
constexpr int pad = 8;        // elements that keep rows of tiles in different banks
constexpr int strip_pad = 4;  // the same for strips, which are fp32

using Element = __nv_bfloat16;
using Rows = wmma::fragment<wmma::matrix_a, side, side, side, Element, wmma::row_major>;
using Columns = wmma::fragment<wmma::matrix_b, side, side, side, Element, wmma::col_major>;
using RightRows = wmma::fragment<wmma::matrix_b, side, side, side, Element, wmma::row_major>;
using Sums = wmma::fragment<wmma::accumulator, side, side, side, float>;

// Rows [first, first + rows) of a head, `step` apart from `origin`, as a shared tile
// [rows, D + pad]; zero beyond t and d.
template <int D>
__device__ void load_tile(const Attention& a, const In& in, int64_t origin, int64_t step,
                          int64_t first, int rows, Element* tile) {
  constexpr int per_row = D / group;
  for (int g = threadIdx.x; g < rows * per_row; g += threads) {
    const int r = g / per_row, column = g % per_row * group;
    const int n = first + r < a.t ? in_group(column, a.d) : 0;
    const int64_t at = origin + (first + r) * step + column;
    uint4 words = make_uint4(0, 0, 0, 0);
    if (in.aligned && n == group) {
      words = static_cast<const uint4*>(in.data)[at / group];
    } else {
      const bf16* values = static_cast<const bf16*>(in.data) + at;
      uint32_t word[group / 2];
#pragma unroll
      for (int i = 0; i < group / 2; ++i) {
        const uint32_t low = 2 * i < n ? values[2 * i].bits : 0u;
        const uint32_t high = 2 * i + 1 < n ? values[2 * i + 1].bits : 0u;
        word[i] = low | high << 16;
      }
      words = make_uint4(word[0], word[1], word[2], word[3]);
    }
    *reinterpret_cast<uint4*>(tile + r * (D + pad) + column) = words;
  }
}

// strip [16, N] = 16 rows of x times the N rows of y, both [.., D + pad].
template <int D, int N>
__device__ void rows_times_rows(const Element* x, const Element* y, float* strip) {
  Sums sums[N / side];
#pragma unroll
  for (int n = 0; n < N / side; ++n) wmma::fill_fragment(sums[n], 0.0f);
#pragma unroll
  for (int e = 0; e < D; e += side) {
    Rows left;
    wmma::load_matrix_sync(left, x + e, D + pad);
#pragma unroll
    for (int n = 0; n < N / side; ++n) {
      Columns right;
      wmma::load_matrix_sync(right, y + n * side * (D + pad) + e, D + pad);
      wmma::mma_sync(sums[n], left, right, sums[n]);
    }
  }
#pragma unroll
  for (int n = 0; n < N / side; ++n)
    wmma::store_matrix_sync(strip + n * side, sums[n], N + strip_pad, wmma::mem_row_major);
  __syncwarp();
}

// sums [16, D] += p [16, N] times the N rows of x [N, D + pad]; p as bf16 where a strip was.
template <int D, int N>
__device__ void add_product(const float* strip, const Element* x, Sums (&sums)[D / side]) {
  const auto* p = reinterpret_cast<const Element*>(strip);
#pragma unroll
  for (int m = 0; m < N; m += side) {
    Rows left;
    wmma::load_matrix_sync(left, p + m, 2 * (N + strip_pad));
#pragma unroll
    for (int n = 0; n < D / side; ++n) {
      RightRows right;
      wmma::load_matrix_sync(right, x + m * (D + pad) + n * side, D + pad);
      wmma::mma_sync(sums[n], left, right, sums[n]);
    }
  }
}

// How a warp sees a strip between products: the lanes 2 r and 2 r + 1 have row r, one its even and
// one its odd columns.
struct Lane {
  int row, odd;
  __device__ Lane() : row(threadIdx.x % 32 / 2), odd(threadIdx.x % 2) {}

  template <int N>
  __device__ void read(const float* strip, float (&x)[N / 2]) const {
#pragma unroll
    for (int j = 0; j < N / 2; ++j) x[j] = strip[row * (N + strip_pad) + 2 * j + odd];
  }
  // As bf16, in the same memory: every lane must have read.
  template <int N>
  __device__ void write(float* strip, const float (&x)[N / 2]) const {
    auto* p = reinterpret_cast<bf16*>(strip);
#pragma unroll
    for (int j = 0; j < N / 2; ++j) p[row * 2 * (N + strip_pad) + 2 * j + odd] = to_bf16(x[j]);
  }
  // Of both lanes of a row.
  __device__ float row_sum(float x) const {
    return x + __shfl_xor_sync(all_lanes, x, 1);
  }
  __device__ float row_max(float x) const {
    return fmaxf(x, __shfl_xor_sync(all_lanes, x, 1));
  }
};

// Multiplies row r of the sums by the factor that its lanes hold, by way of factors [16, 16].
template <int D>
__device__ void scale_rows(const Lane& lane, float factor, float* factors, Sums (&sums)[D / side]) {
#pragma unroll
  for (int j = 0; j < side / 2; ++j) factors[lane.row * side + 2 * j + lane.odd] = factor;
  __syncwarp();
  Sums same;
  wmma::load_matrix_sync(same, factors, side, wmma::mem_row_major);
#pragma unroll
  for (int n = 0; n < D / side; ++n)
#pragma unroll
    for (int i = 0; i < Sums::num_elements; ++i) sums[n].x[i] *= same.x[i];
}

// 16 rows of a head from `first` on, by way of a strip [16, D + strip_pad].
template <int D>
__device__ void store_rows(const Attention& a, const Out& out, int64_t origin, int64_t step,
                           int64_t first, float factor, float* strip,
                           const Sums (&sums)[D / side]) {
#pragma unroll
  for (int n = 0; n < D / side; ++n)
    wmma::store_matrix_sync(strip + n * side, sums[n], D + strip_pad, wmma::mem_row_major);
  __syncwarp();
  constexpr int per_row = D / group;
  for (int g = threadIdx.x % 32; g < side * per_row; g += 32) {
    const int r = g / per_row, column = g % per_row * group;
    const int n = first + r < a.t ? in_group(column, a.d) : 0;
    if (n <= 0) continue;
    float x[group];
#pragma unroll
    for (int i = 0; i < group; ++i) x[i] = factor * strip[r * (D + strip_pad) + column + i];
    store(out, origin + (first + r) * step + column, n, x);
  }
  __syncwarp();  // before the strip is used again
}

template <int N>
__device__ void clear(Sums (&sums)[N]) {
#pragma unroll
  for (int n = 0; n < N; ++n) wmma::fill_fragment(sums[n], 0.0f);
}

// Elements of a tile, floats of the strips of a block.
constexpr int tile(int rows, int d) {
  return rows * (d + pad);
}
constexpr int strips(int n) {
  return block_rows * (n + strip_pad);
}

// Launch: grid (query tiles, n_head, b), longest first. Shared: q, k, v, strips, factors. The
// result leaves by way of q and k.
template <int D, int BK>
__global__ void __launch_bounds__(threads) attention_wmma_kernel(Attention a) {
  const Lane lane;
  const int warp = threadIdx.x / 32;
  const int64_t head = blockIdx.y, b = blockIdx.z, kv = head / a.repeat;
  const int64_t first = int64_t{gridDim.x - 1 - blockIdx.x} * block_rows;
  const int64_t mine = first + warp * side, query = mine + lane.row;
  Element *q = dynamic_shared<Element>(), *k = q + tile(block_rows, D), *v = k + tile(BK, D);
  float* strip = reinterpret_cast<float*>(v + tile(BK, D)) + warp * side * (BK + strip_pad);
  float* factors = reinterpret_cast<float*>(v + tile(BK, D)) + strips(BK) + warp * side * side;
  load_tile<D>(a, a.qkv, a.q(b, head), a.packed, first, block_rows, q);

  Sums out[D / side];
  clear(out);
  float max = -INFINITY, sum = 0;
  for (int64_t key = 0; key < first + block_rows && key < a.t; key += BK) {
    __syncthreads();  // the tiles before are done with
    load_tile<D>(a, a.qkv, a.k(b, kv), a.packed, key, BK, k);
    load_tile<D>(a, a.qkv, a.v(b, kv), a.packed, key, BK, v);
    __syncthreads();
    rows_times_rows<D, BK>(q + warp * tile(side, D), k, strip);
    float s[BK / 2], most = max, added = 0;
    lane.read<BK>(strip, s);
#pragma unroll
    for (int j = 0; j < BK / 2; ++j) {
      s[j] = key + 2 * j + lane.odd <= query ? a.scale * s[j] : -INFINITY;  // not the future
      most = fmaxf(most, s[j]);
    }
    most = lane.row_max(most);  // finite: key 0 is in the first tile
#pragma unroll
    for (int j = 0; j < BK / 2; ++j) added += s[j] = fast_exp(s[j] - most);
    const float shrink = fast_exp(max - most);
    sum = sum * shrink + lane.row_sum(added);
    max = most;
    __syncwarp();  // all lanes have read
    lane.write<BK>(strip, s);
    scale_rows<D>(lane, shrink, factors, out);  // after its barrier p is there
    add_product<D, BK>(strip, v, out);
  }
  __syncthreads();  // q, k, v are done with
  scale_rows<D>(lane, 1.0f / sum, factors, out);
  if (lane.odd == 0 && query < a.t) a.lse[a.row(b, head) + query] = max + logf(sum);
  store_rows<D>(a, a.out, a.result(b, head), a.n_head * a.d, mine, 1.0f,
                reinterpret_cast<float*>(q) + warp * side * (D + strip_pad), out);
}

// From the strips s and dp of one warp, p = e^(scale s - lse) and ds = p (dp - delta), in their
// places as bf16. Row r and column c of a strip are the query and key, or, with `by_key`, the key
// and query, first + r and other + c. lse and delta are those of the tile's queries, in shared
// memory.
template <int N, bool by_key>
__device__ void score_gradient(const Attention& a, const Lane& lane, float* s_strip,
                               float* dp_strip, int64_t first, int64_t other, const float* lse,
                               const float* delta) {
  float p[N / 2], ds[N / 2];
  lane.read<N>(s_strip, p);
  lane.read<N>(dp_strip, ds);
#pragma unroll
  for (int j = 0; j < N / 2; ++j) {
    const int c = 2 * j + lane.odd, i = by_key ? c : lane.row;
    const int64_t query = by_key ? other + c : first + lane.row;
    const int64_t key = by_key ? first + lane.row : other + c;
    p[j] = key <= query && query < a.t ? fast_exp(a.scale * p[j] - lse[i]) : 0.0f;
    ds[j] = p[j] * (ds[j] - delta[i]);
  }
  __syncwarp();  // all lanes have read
  if (by_key) lane.write<N>(s_strip, p);
  lane.write<N>(dp_strip, ds);
  __syncwarp();
}

// lse and delta of the queries from `first` on; 0 beyond t.
__device__ void load_statistics(const Attention& a, int64_t row, int64_t first, int rows,
                                float* lse, float* delta) {
  for (int i = threadIdx.x; i < rows; i += threads) {
    lse[i] = first + i < a.t ? a.lse[row + first + i] : 0.0f;
    delta[i] = first + i < a.t ? a.delta[row + first + i] : 0.0f;
  }
}

// Launch: grid (key tiles, n_kv_head, b); a block goes through the queries of its group's heads in
// order. Shared: k, v, q, d_o, and two strips for each warp; dk and dv leave by way of k and v.
template <int D, int BQ>
__global__ void __launch_bounds__(threads) attention_grad_kv_wmma_kernel(Attention a) {
  SHARED_ARRAY(float, lse, [BQ]);
  SHARED_ARRAY(float, delta, [BQ]);
  const Lane lane;
  const int warp = threadIdx.x / 32;
  const int64_t kv = blockIdx.y, b = blockIdx.z, key = int64_t{blockIdx.x} * block_rows;
  const int64_t mine = key + warp * side;
  Element *k = dynamic_shared<Element>(), *v = k + tile(block_rows, D);
  Element *q = v + tile(block_rows, D), *d_o = q + tile(BQ, D);
  float* s = reinterpret_cast<float*>(d_o + tile(BQ, D)) + warp * side * (BQ + strip_pad);
  float* dp = s + strips(BQ);
  load_tile<D>(a, a.qkv, a.k(b, kv), a.packed, key, block_rows, k);
  load_tile<D>(a, a.qkv, a.v(b, kv), a.packed, key, block_rows, v);
  Sums dk[D / side], dv[D / side];
  clear(dk);
  clear(dv);
  for (int64_t head = kv * a.repeat; head < (kv + 1) * a.repeat; ++head)
    for (int64_t first = key / BQ * BQ; first < a.t; first += BQ) {
      __syncthreads();  // the tiles before are done with
      load_tile<D>(a, a.qkv, a.q(b, head), a.packed, first, BQ, q);
      load_tile<D>(a, a.d_o, a.result(b, head), a.n_head * a.d, first, BQ, d_o);
      load_statistics(a, a.row(b, head), first, BQ, lse, delta);
      __syncthreads();
      rows_times_rows<D, BQ>(k + warp * tile(side, D), q, s);
      rows_times_rows<D, BQ>(v + warp * tile(side, D), d_o, dp);
      score_gradient<BQ, true>(a, lane, s, dp, mine, first, lse, delta);
      add_product<D, BQ>(s, d_o, dv);
      add_product<D, BQ>(dp, q, dk);
    }
  __syncthreads();  // k and v are done with
  float* strip = reinterpret_cast<float*>(k) + warp * side * (D + strip_pad);
  store_rows<D>(a, a.dqkv, a.k(b, kv), a.packed, mine, a.scale, strip, dk);
  store_rows<D>(a, a.dqkv, a.v(b, kv), a.packed, mine, 1.0f, strip, dv);
}

// Launch: grid (query tiles, n_head, b), longest first. Shared: q, d_o, k, v, and two strips for
// each warp; dq leaves by way of q and d_o.
template <int D, int BK>
__global__ void __launch_bounds__(threads) attention_grad_q_wmma_kernel(Attention a) {
  SHARED_ARRAY(float, lse, [block_rows]);
  SHARED_ARRAY(float, delta, [block_rows]);
  const Lane lane;
  const int warp = threadIdx.x / 32;
  const int64_t head = blockIdx.y, b = blockIdx.z, kv = head / a.repeat;
  const int64_t first = int64_t{gridDim.x - 1 - blockIdx.x} * block_rows;
  const int64_t mine = first + warp * side;
  Element *q = dynamic_shared<Element>(), *d_o = q + tile(block_rows, D);
  Element *k = d_o + tile(block_rows, D), *v = k + tile(BK, D);
  float* s = reinterpret_cast<float*>(v + tile(BK, D)) + warp * side * (BK + strip_pad);
  float* dp = s + strips(BK);
  load_tile<D>(a, a.qkv, a.q(b, head), a.packed, first, block_rows, q);
  load_tile<D>(a, a.d_o, a.result(b, head), a.n_head * a.d, first, block_rows, d_o);
  load_statistics(a, a.row(b, head), first, block_rows, lse, delta);
  Sums dq[D / side];
  clear(dq);
  for (int64_t key = 0; key < first + block_rows && key < a.t; key += BK) {
    __syncthreads();  // the tiles before are done with
    load_tile<D>(a, a.qkv, a.k(b, kv), a.packed, key, BK, k);
    load_tile<D>(a, a.qkv, a.v(b, kv), a.packed, key, BK, v);
    __syncthreads();
    rows_times_rows<D, BK>(q + warp * tile(side, D), k, s);
    rows_times_rows<D, BK>(d_o + warp * tile(side, D), v, dp);
    score_gradient<BK, false>(a, lane, s, dp, mine, key, lse + warp * side, delta + warp * side);
    add_product<D, BK>(dp, k, dq);
  }
  __syncthreads();  // q and d_o are done with
  store_rows<D>(a, a.dqkv, a.q(b, head), a.packed, mine, a.scale,
                reinterpret_cast<float*>(q) + warp * side * (D + strip_pad), dq);
}

// Two tiles of a block's rows and two of `rows` others would be 2 (block_rows + rows).
constexpr size_t shared_bytes(int rows, int d, int strip_count, int n) {
  return sizeof(Element) * static_cast<size_t>(tile(rows, d)) +
         sizeof(float) * static_cast<size_t>(strip_count * strips(n));
}

template <int D>
void forward(Stream s, const Attention& a, int64_t b) {
  constexpr int keys = 64;
  constexpr size_t factors = sizeof(float) * block_rows * side;
  launch(attention_wmma_kernel<D, keys>, tiles(a.t, block_rows, a.n_head, b), dim3(threads),
         shared_bytes(block_rows + 2 * keys, D, 1, keys) + factors, s, a);
}

// Narrower tiles for wide heads, so that two blocks fit a multiprocessor of sm_80 too.
template <int D, int N>
void backward(Stream s, const Attention& a, int64_t b) {
  const dim3 block(threads);
  constexpr size_t bytes = shared_bytes(2 * block_rows + 2 * N, D, 2, N);
  launch(attention_grad_kv_wmma_kernel<D, N>, tiles(a.t, block_rows, a.n_kv_head, b), block, bytes,
         s, a);
  launch(attention_grad_q_wmma_kernel<D, N>, tiles(a.t, block_rows, a.n_head, b), block, bytes, s,
         a);
}

}  // namespace

void attention_wmma(Stream s, const Attention& a, int64_t b) {
  if (a.d <= 32) return forward<32>(s, a, b);
  if (a.d <= 64) return forward<64>(s, a, b);
  forward<128>(s, a, b);
}

void attention_grad_wmma(Stream s, const Attention& a, int64_t b) {
  if (a.d <= 32) return backward<32, 64>(s, a, b);
  if (a.d <= 64) return backward<64, 64>(s, a, b);
  backward<128, 32>(s, a, b);
}

}  // namespace lockstep::cuda
