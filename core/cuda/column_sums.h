// Sums over the rows of a matrix (gradients of biases and norm weights) without atomics: a block
// sums a fixed piece of rows, a second kernel adds the pieces in order. The pieces depend on the
// number of rows alone. Read next: reduce.cu, norm.cu.
#pragma once

#include "core/cuda/device.h"

namespace lockstep::cuda {

constexpr int64_t rows_per_piece = 128;

// Terms: add(row, column, n, sum) adds columns [column, column + n) of one row to sum [K][8].
// Launch: block (32, 8), a thread for each group of 8 columns and every eighth row of the piece;
// grid (columns / 256, pieces). partial: [pieces, K, columns].
template <int K, class Terms>
__global__ void __launch_bounds__(256)
    column_partials(Terms terms, int64_t rows, int64_t columns, float* partial) {
  SHARED_ARRAY(float, sums, [8][K][256]);
  const int64_t column = (int64_t{blockIdx.x} * 32 + threadIdx.x) * group;
  const int n = in_group(column, columns);
  const int64_t begin = int64_t{blockIdx.y} * rows_per_piece;
  const int64_t end = begin + rows_per_piece < rows ? begin + rows_per_piece : rows;
  float sum[K][group] = {};
  if (n > 0)
    for (int64_t row = begin + threadIdx.y; row < end; row += 8) terms.add(row, column, n, sum);
#pragma unroll
  for (int k = 0; k < K; ++k)
#pragma unroll
    for (int i = 0; i < group; ++i) sums[threadIdx.y][k][threadIdx.x * group + i] = sum[k][i];
  __syncthreads();

  const int mine = threadIdx.y * 32 + threadIdx.x;  // now a thread for each column
  if (int64_t{blockIdx.x} * 256 + mine >= columns) return;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    float total = 0;
#pragma unroll
    for (int y = 0; y < 8; ++y) total += sums[y][k][mine];
    partial[(int64_t{blockIdx.y} * K + k) * columns + int64_t{blockIdx.x} * 256 + mine] = total;
  }
}

template <int K, class Terms>
void launch_column_partials(cudaStream_t s, const Terms& terms, int64_t rows, int64_t columns,
                            float* partial) {
  const dim3 grid(static_cast<unsigned>((columns + 255) / 256),
                  static_cast<unsigned>((rows + rows_per_piece - 1) / rows_per_piece));
  launch(column_partials<K, Terms>, grid, dim3(32, 8), 0, s, terms, rows, columns, partial);
}

// out [columns] (+)= sum number k of K over the pieces. In reduce.cu.
void finish_column_sums(cudaStream_t s, const float* partial, int64_t pieces, int k, int sums,
                        int64_t columns, const Out& out);

}  // namespace lockstep::cuda
