// Threads of a rank. Every CPU kernel is a loop over independent work items handed to parallel_for;
// which thread runs an item never changes a result. Each rank thread has its own number of threads
// (OpenMP's own rule). Read next: cpu/.
#pragma once

#include <cstdint>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace lockstep {

// The number of threads that the calling thread's loops and GEMMs use.
inline int num_threads() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

inline void set_num_threads([[maybe_unused]] int n) {
#ifdef _OPENMP
  omp_set_num_threads(n);
#endif
}

// Inside a loop: which of the num_threads() threads this is, to pick its own scratch memory.
inline int thread_index() {
#ifdef _OPENMP
  return omp_get_thread_num();
#else
  return 0;
#endif
}

// body(i) for i in [0, n), in any order, on any thread.
template <class Body>
void parallel_for(int64_t n, Body&& body) {
#ifdef _OPENMP
#pragma omp parallel for schedule(static) if (n > 1)
#endif
  for (int64_t i = 0; i < n; ++i) body(i);
}

// The same for long items: a thread takes the next one when it has done its own, in order of i.
template <class Body>
void parallel_on_demand(int64_t n, Body&& body) {
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic) if (n > 1)
#endif
  for (int64_t i = 0; i < n; ++i) body(i);
}

// body(begin, end) over pieces of [0, n) of `grain` items (a property of the work, never of the
// number of threads, so that partial sums over pieces are the same on any machine).
template <class Body>
void parallel_pieces(int64_t n, int64_t grain, Body&& body) {
  parallel_for((n + grain - 1) / grain, [&](int64_t i) {
    const int64_t begin = i * grain, end = begin + grain < n ? begin + grain : n;
    body(begin, end);
  });
}

}  // namespace lockstep
