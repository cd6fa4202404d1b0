// Embedding, rotary positions and dropout: what happens to rows of tokens between the matrices.
// Read next: attention.cu.
#include "core/cuda/device.h"
#include "core/cuda/kernels.h"
#include "core/philox.h"

namespace lockstep::cuda {

namespace {

constexpr int threads = 256;

// Launch: grid-stride over groups of 8 of y [n, d]. Bytes are the least possible.
__global__ void __launch_bounds__(threads)
    embedding_kernel(In table, const int32_t* ids, Out y, int64_t n, int64_t d) {
  const int64_t per_row = (d + group - 1) / group, step = int64_t{gridDim.x} * threads;
  for (int64_t g = int64_t{blockIdx.x} * threads + threadIdx.x; g < n * per_row; g += step) {
    const int64_t token = g / per_row, column = g % per_row * group;
    const int count = in_group(column, d);
    float v[group];
    load(table, ids[token] * d + column, count, v);
    store(y, token * d + column, count, v);
  }
}

// A row that several tokens share is summed in the order of the tokens by one warp, the one of the
// first such token; no atomics, no sorting. Launch: a warp for each (token, tile of 1024 columns),
// lanes hold four groups of 8 columns. Bytes: dy once, the touched rows of dtable once, and each
// warp reads ids (n^2 / 2 at most, from the second-level cache; a token seen before stops early).
constexpr int groups_per_lane = 4;
constexpr int64_t columns_per_warp = 32 * groups_per_lane * group;

__global__ void __launch_bounds__(threads)
    embedding_grad_kernel(const int32_t* ids, In dy, Out dtable, int64_t n, int64_t d) {
  const int lane = threadIdx.x % 32;
  const int64_t token = int64_t{blockIdx.x} * (threads / 32) + threadIdx.x / 32;
  if (token >= n) return;  // the whole warp
  const int32_t id = ids[token];
  for (int64_t end = token; end > 0; end -= 32) {  // backwards: frequent tokens are near
    const int64_t i = end - 1 - lane;
    if (__ballot_sync(all_lanes, i >= 0 && ids[i] == id)) return;
  }
  const int64_t first = blockIdx.y * columns_per_warp + lane * group;
  float sum[groups_per_lane][group] = {};
  for (int64_t begin = token; begin < n; begin += 32) {
    const int64_t i = begin + lane;
    unsigned same = __ballot_sync(all_lanes, i < n && ids[i] == id);
    while (same) {
      const int64_t row = begin + __ffs(static_cast<int>(same)) - 1;
      same &= same - 1;
#pragma unroll
      for (int k = 0; k < groups_per_lane; ++k) {
        const int64_t column = first + k * 32 * group;
        const int count = in_group(column, d);
        if (count <= 0) continue;
        float v[group];
        load(dy, row * d + column, count, v);
#pragma unroll
        for (int j = 0; j < group; ++j) sum[k][j] += v[j];
      }
    }
  }
#pragma unroll
  for (int k = 0; k < groups_per_lane; ++k) {
    const int64_t column = first + k * 32 * group;
    const int count = in_group(column, d);
    if (count > 0) store(dtable, id * d + column, count, sum[k]);
  }
}

// Launch: grid-stride over groups of 8 pairs (i, i + head_dim / 2); a value's "pairs" are copied.
// Bytes per element: the least possible (cos and sin come from a cache).
struct Rope {
  In x;
  const float *cos, *sin;  // [t, half]
  int64_t heads, rotated, half, t;
  float sign;
  Out y;
};

__global__ void __launch_bounds__(threads) rope_kernel(Rope a, int64_t rows) {
  const int64_t per_head = (a.half + group - 1) / group, per_row = a.heads * per_head;
  const int64_t step = int64_t{gridDim.x} * threads;
  for (int64_t g = int64_t{blockIdx.x} * threads + threadIdx.x; g < rows * per_row; g += step) {
    const int64_t row = g / per_row, head = g % per_row / per_head;
    const int64_t pair = g % per_head * group;
    const int n = in_group(pair, a.half);
    const int64_t at = (row * a.heads + head) * 2 * a.half + pair;
    float x1[group], x2[group], y1[group], y2[group];
    load(a.x, at, n, x1);
    load(a.x, at + a.half, n, x2);
#pragma unroll
    for (int i = 0; i < group; ++i) {
      float c = 1, s = 0;
      if (head < a.rotated && i < n) {
        c = a.cos[row % a.t * a.half + pair + i];
        s = a.sign * a.sin[row % a.t * a.half + pair + i];
      }
      y1[i] = x1[i] * c - x2[i] * s;
      y2[i] = x2[i] * c + x1[i] * s;
    }
    store(a.y, at, n, y1);
    store(a.y, at + a.half, n, y2);
  }
}

// Launch: grid.y over samples, grid.x over their groups of 8 elements, each two draws of four
// words, the same words as on the CPU. Bytes per element: the least possible.
struct Dropout {
  In x;
  float p, kept_scale;
  uint64_t key;
  const StepScalars* scalars;
  Out y;
  int64_t per_sample;
};

__global__ void __launch_bounds__(threads) dropout_kernel(Dropout a, int64_t samples) {
  const int64_t step = int64_t{gridDim.x} * threads * group;
  const int32_t now = a.scalars->step;
  const int64_t first = a.scalars->first_sample;
  for (int64_t sample = blockIdx.y; sample < samples; sample += gridDim.y)
    for (int64_t i = (int64_t{blockIdx.x} * threads + threadIdx.x) * group; i < a.per_sample;
         i += step) {
      const int n = in_group(i, a.per_sample);
      float v[group];
      load(a.x, sample * a.per_sample + i, n, v);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto words = dropout_words(a.key, now, first + sample, i / 4 + half);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          float& x = v[half * 4 + k];
          x = to_unit_float(words[k]) < a.p ? 0.0f : x * a.kept_scale;
        }
      }
      store(a.y, sample * a.per_sample + i, n, v);
    }
}

}  // namespace

void embedding(Stream s, const In& table, const int32_t* ids, const Out& y, int64_t n, int64_t d) {
  const int64_t groups = n * ((d + group - 1) / group);
  launch(embedding_kernel, blocks_for(groups, threads), dim3(threads), 0, s, table, ids, y, n, d);
}

void embedding_grad(Stream s, const int32_t* ids, const In& dy, const Out& dtable, int64_t n,
                    int64_t d) {
  constexpr int64_t warps = threads / 32;
  const dim3 grid(static_cast<unsigned>((n + warps - 1) / warps),
                  static_cast<unsigned>((d + columns_per_warp - 1) / columns_per_warp));
  launch(embedding_grad_kernel, grid, dim3(threads), 0, s, ids, dy, dtable, n, d);
}

void rope(Stream s, const In& x, const float* cos, const float* sin, const HeadLayout& heads,
          bool inverse, const Out& y, int64_t rows, int64_t t) {
  const int64_t all = heads.n_head + 2 * heads.n_kv_head, half = heads.head_dim / 2;
  const int64_t groups = rows * all * ((half + group - 1) / group);
  launch(rope_kernel, blocks_for(groups, threads), dim3(threads), 0, s,
         Rope{x, cos, sin, all, heads.n_head + heads.n_kv_head, half, t, inverse ? -1.0f : 1.0f, y},
         rows);
}

void dropout(Stream s, const In& x, float p, uint64_t stream_key, const StepScalars* scalars,
             const Out& y, int64_t samples, int64_t per_sample) {
  dim3 grid = blocks_for((per_sample + group - 1) / group, threads);
  grid.y = static_cast<unsigned>(samples < 65535 ? samples : 65535);
  launch(dropout_kernel, grid, dim3(threads), 0, s,
         Dropout{x, p, 1.0f / (1.0f - p), stream_key, scalars, y, per_sample}, samples);
}

}  // namespace lockstep::cuda
