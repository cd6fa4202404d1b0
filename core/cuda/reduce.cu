// Reductions: over any dimensions, over rows, and the GELU gradient that sums its rows on the way.
// Sums are taken per fixed piece, then over pieces in order. Read next: norm.cu.
#include "core/cuda/column_sums.h"
#include "core/cuda/kernels.h"

namespace lockstep::cuda {

namespace {

constexpr int threads = 256;
constexpr int64_t piece = 16384;  // elements below one result that one block, or one thread, folds
constexpr int64_t tall = 64;      // fewer elements below each result: a thread for each result

template <int N>
__device__ void offsets(const Dims<N>& dims, int64_t index, int64_t (&at)[N]) {
#pragma unroll
  for (int k = 0; k < N; ++k) at[k] = 0;
#pragma unroll 1
  for (int d = 0; d < dims.count; ++d) {
    const int64_t above = index / dims.size[d], here = index - above * dims.size[d];
#pragma unroll
    for (int k = 0; k < N; ++k) at[k] += here * dims.stride[d][k];
    index = above;
  }
}

// A NaN stays: it is greater than anything here.
__device__ double fold_two(Fold fold, double a, double b) {
  if (fold != Fold::max) return a + b;
  return b > a || b != b ? b : a;
}

__device__ double block_fold(Fold fold, double v) {
  SHARED_ARRAY(double, part, [threads / 32]);
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2)
    v = fold_two(fold, v, __shfl_xor_sync(all_lanes, v, lane));
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  v = part[0];
#pragma unroll
  for (int warp = 1; warp < threads / 32; ++warp) v = fold_two(fold, v, part[warp]);
  return v;
}

struct Reduce {
  Fold fold;
  Dims<2> outer;
  Dims<1> inner;
  In x;
  int64_t results, count;  // elements of outer and of inner
  double* partial;         // [pieces, results]
};

__device__ double start_of(Fold fold) {
  return fold == Fold::max ? -static_cast<double>(INFINITY) : 0.0;
}

// Launch: block for each (piece, result), grid-stride. Fp64 sums, so a mean over millions is good
// to fp32. Bytes per element: the least possible (x once).
__global__ void __launch_bounds__(threads) reduce_wide(Reduce r, int64_t pieces) {
  for (int64_t item = blockIdx.x; item < pieces * r.results; item += gridDim.x) {
    const int64_t result = item % r.results, begin = item / r.results * piece;
    const int64_t end = begin + piece < r.count ? begin + piece : r.count;
    int64_t corner[2], below[1];
    offsets(r.outer, result, corner);
    double total = start_of(r.fold);
    for (int64_t i = begin + threadIdx.x; i < end; i += threads) {
      offsets(r.inner, i, below);
      total = fold_two(r.fold, total, load(r.x, corner[0] + below[0]));
    }
    total = block_fold(r.fold, total);
    if (threadIdx.x == 0) r.partial[item] = total;
    __syncthreads();  // block_fold's memory is used again
  }
}

// Launch: thread for each result, grid-stride; for few elements below each. Bytes per element: the
// least possible (x once), if what neighbours read lies side by side; else x comes in sectors
// of 32.
__global__ void __launch_bounds__(threads) reduce_tall(Reduce r) {
  const int64_t step = int64_t{gridDim.x} * threads;
  for (int64_t result = int64_t{blockIdx.x} * threads + threadIdx.x; result < r.results;
       result += step) {
    int64_t corner[2], below[1];
    offsets(r.outer, result, corner);
    double total = start_of(r.fold);
    for (int64_t i = 0; i < r.count; ++i) {
      offsets(r.inner, i, below);
      total = fold_two(r.fold, total, load(r.x, corner[0] + below[0]));
    }
    r.partial[result] = total;
  }
}

// Launch: thread for each result, grid-stride. Bytes: 8 for each piece of 16384 elements; after
// reduce_tall for each result, whose elements are few, but no training step has such sums.
__global__ void __launch_bounds__(threads) reduce_finish(Reduce r, int64_t pieces, Out y) {
  const int64_t step = int64_t{gridDim.x} * threads;
  for (int64_t result = int64_t{blockIdx.x} * threads + threadIdx.x; result < r.results;
       result += step) {
    double total = start_of(r.fold);
    for (int64_t p = 0; p < pieces; ++p)
      total = fold_two(r.fold, total, r.partial[p * r.results + result]);
    if (r.fold == Fold::mean) total /= static_cast<double>(r.count);
    int64_t at[2];
    offsets(r.outer, result, at);
    store(y, at[1], static_cast<float>(total));
  }
}

// Launch: thread for each column. Bytes: 4 for each piece of a column.
__global__ void __launch_bounds__(threads)
    finish_columns(const float* partial, int64_t pieces, int64_t step, int64_t columns, Out out) {
  const int64_t column = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (column >= columns) return;
  float total = 0;
  for (int64_t p = 0; p < pieces; ++p) total += partial[p * step + column];
  store(out, column, total);
}

// Bytes per element: the least possible (dy once).
struct RowTerms {
  In dy;
  int64_t columns;
  __device__ void add(int64_t row, int64_t column, int n, float (&sum)[1][group]) const {
    float d[group];
    load(dy, row * columns + column, n, d);
#pragma unroll
    for (int i = 0; i < group; ++i) sum[0][i] += d[i];
  }
};

// Writes dpre while it sums. Bytes per element: the least possible (pre, dy and dpre once).
template <class Gelu>
struct GeluTerms {
  In pre, dy;
  Out dpre;
  int64_t columns;
  __device__ void add(int64_t row, int64_t column, int n, float (&sum)[1][group]) const {
    const int64_t at = row * columns + column;
    float x[group], d[group];
    load(pre, at, n, x);
    load(dy, at, n, d);
#pragma unroll
    for (int i = 0; i < group; ++i) {
      d[i] *= Gelu().grad(x[i], 0.0f);
      sum[0][i] += d[i];
    }
    store(dpre, at, n, d);
  }
};

}  // namespace

int64_t reduce_pieces(int64_t count) {
  return count <= tall ? 1 : (count + piece - 1) / piece;
}

void reduce(Stream s, Fold fold, const Dims<2>& outer, const Dims<1>& inner, const In& x,
            const Out& y, double* scratch) {
  const Reduce r{fold,   outer, inner, x, outer.rows * outer.size[0], inner.rows * inner.size[0],
                 scratch};
  const int64_t pieces = reduce_pieces(r.count);
  if (r.count <= tall)
    launch(reduce_tall, blocks_for(r.results, threads), dim3(threads), 0, s, r);
  else
    launch(reduce_wide, blocks_for(pieces * r.results, 1), dim3(threads), 0, s, r, pieces);
  launch(reduce_finish, blocks_for(r.results, threads), dim3(threads), 0, s, r, pieces, y);
}

int64_t row_pieces(int64_t rows) {
  return (rows + rows_per_piece - 1) / rows_per_piece;
}

void finish_column_sums(cudaStream_t s, const float* partial, int64_t pieces, int k, int sums,
                        int64_t columns, const Out& out) {
  const dim3 grid(static_cast<unsigned>((columns + threads - 1) / threads));
  launch(finish_columns, grid, dim3(threads), 0, s, partial + k * columns, pieces, sums * columns,
         columns, out);
}

void sum_rows(Stream s, const In& dy, int64_t rows, int64_t columns, const Out& db,
              float* scratch) {
  launch_column_partials<1>(s, RowTerms{dy, columns}, rows, columns, scratch);
  finish_column_sums(s, scratch, row_pieces(rows), 0, 1, columns, db);
}

void gelu_bias_grad(Stream s, bool exact, const In& pre, const In& dy, const Out& dpre,
                    const Out& db, int64_t rows, int64_t columns, float* scratch) {
  if (exact)
    launch_column_partials<1>(s, GeluTerms<GeluErf>{pre, dy, dpre, columns}, rows, columns,
                              scratch);
  else
    launch_column_partials<1>(s, GeluTerms<GeluTanh>{pre, dy, dpre, columns}, rows, columns,
                              scratch);
  if (db.data) finish_column_sums(s, scratch, row_pieces(rows), 0, 1, columns, db);
}

}  // namespace lockstep::cuda
