// A team of a block's 256 threads: what codecs/ need, with the bits of cpu/team.h. Every call is
// made by all threads alike. Read next: codecs.cu.
#pragma once

#include "core/codecs/cell.h"
#include "core/cuda/launch.h"

namespace lockstep::cuda {

struct Block {
  __device__ void sync() const { __syncthreads(); }

  template <class F>
  __device__ void each(int64_t n, F&& f) const {
    for (int64_t i = threadIdx.x; i < n; i += team_size) f(i);
  }

  template <class F>
  __device__ uint32_t largest(int64_t n, F&& f) const {
    uint32_t most = 0;
    for (int64_t i = threadIdx.x; i < n; i += team_size) {
      const uint32_t v = f(i);
      most = v > most ? v : most;
    }
    return fold(most, Larger());
  }

  template <class F>
  __device__ int32_t count(int64_t n, F&& f) const {
    int32_t count = 0;
    for (int64_t i = threadIdx.x; i < n; i += team_size) count += f(i);
    return fold(count, Plus());
  }

  template <class F>
  __device__ double sum(int64_t n, F&& f) const {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += team_size) sum += f(i);
    return fold(sum, Plus());
  }

  // Each thread has consecutive indices: their sum, the sums of the threads before it (doubled
  // distances, Hillis and Steele 1986), then its own indices once more.
  template <class F, class G>
  __device__ uint32_t scan(int64_t n, F&& f, G&& g) const {
    SHARED_ARRAY(uint32_t, part, [2][team_size]);
    const int t = threadIdx.x;
    const int64_t each = (n + team_size - 1) / team_size, begin = t * each;
    const int64_t end = begin + each < n ? begin + each : n;
    uint32_t mine = 0;
    for (int64_t i = begin; i < end; ++i) mine += f(i);
    __syncthreads();  // `part` may still be read from the call before
    part[0][t] = mine;
    int now = 0;
    for (int distance = 1; distance < team_size; distance *= 2, now = 1 - now) {
      __syncthreads();
      part[1 - now][t] = part[now][t] + (t >= distance ? part[now][t - distance] : 0);
    }
    __syncthreads();
    uint32_t before = part[now][t] - mine;
    for (int64_t i = begin; i < end; ++i) {
      const uint32_t v = f(i);
      if (v == 0) continue;
      g(i, before);
      before += v;
    }
    return part[now][team_size - 1];
  }

 private:
  // Not lambdas: each kind of fold has shared memory once.
  struct Plus {
    template <class T>
    __device__ T operator()(T a, T b) const {
      return a + b;
    }
  };
  struct Larger {
    template <class T>
    __device__ T operator()(T a, T b) const {
      return a > b ? a : b;
    }
  };

  // The tree of OneThread::sum: halves upon halves.
  template <class T, class Combine>
  __device__ T fold(T mine, Combine combine) const {
    SHARED_ARRAY(T, part, [team_size]);
    const int t = threadIdx.x;
    __syncthreads();  // `part` may still be read from the call before
    part[t] = mine;
    __syncthreads();
#pragma unroll
    for (int half = team_size / 2; half > 0; half /= 2) {
      if (t < half) part[t] = combine(part[t], part[t + half]);
      __syncthreads();
    }
    return part[0];
  }
};

}  // namespace lockstep::cuda
