// A team of one thread: the loops that codecs/ are made of, as the compiler vectorises them. Read
// next: codecs.cpp.
#pragma once

#include <algorithm>

#include "core/codecs/cell.h"

namespace lockstep {

struct OneThread {
  void sync() const {}

  template <class F>
  void each(int64_t n, F&& f) const {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) f(i);
  }

  template <class F>
  uint32_t largest(int64_t n, F&& f) const {
    uint32_t most = 0;
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < n; ++i) most = std::max(most, f(i));
    return most;
  }

  template <class F>
  int32_t count(int64_t n, F&& f) const {
    int32_t count = 0;
#pragma omp simd reduction(+ : count)
    for (int64_t i = 0; i < n; ++i) count += f(i);
    return count;
  }

  template <class F>
  double sum(int64_t n, F&& f) const {
    alignas(64) double part[team_size] = {};
    for (int64_t begin = 0; begin < n; begin += team_size) {
      const int64_t count = std::min<int64_t>(team_size, n - begin);
#pragma GCC ivdep
      for (int64_t j = 0; j < count; ++j) part[j] += f(begin + j);
    }
    for (int half = team_size / 2; half > 0; half /= 2)
#pragma GCC ivdep
      for (int j = 0; j < half; ++j) part[j] += part[j + half];
    return part[0];
  }

  template <class F, class G>
  uint32_t scan(int64_t n, F&& f, G&& g) const {
    uint32_t before = 0;
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t v = f(i);
      if (v == 0) continue;
      g(i, before);
      before += v;
    }
    return before;
  }
};

}  // namespace lockstep
