// Stands in for NVIDIA's <mma.h>: nvcuda::wmma for bf16 tiles of 16 x 16 x 16 with fp32 sums, run
// by the fibers of a warp. As on hardware a lane has 8 elements of a fragment, and which ones is
// not what anybody would guess: equal for fragments of one type, different between types. Fragments
// are NaN until they are filled. Strict where the hardware is: pointers on 32 bytes, rows on 16,
// the whole warp at the same line. Loads and stores order no memory, so a missing __syncwarp is
// found.
#pragma once

#include <cuda_runtime.h>

// Also names bf16 memory that was written as something else.
struct __attribute__((may_alias)) __nv_bfloat16 {
  uint16_t bits;
};

namespace nvcuda::wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  static_assert(M == 16 && N == 16 && K == 16);
  static constexpr int num_elements = 8;
  T x[num_elements];

  fragment() { std::memset(static_cast<void*>(x), 0xff, sizeof x); }
};

}  // namespace nvcuda::wmma

namespace cuda_on_cpu {

// Element e of lane l is at row p / 16, column p % 16; `odd` numbers make any permutation of 256.
template <class Use>
constexpr int scatter = std::is_same_v<Use, nvcuda::wmma::matrix_a>   ? 37
                        : std::is_same_v<Use, nvcuda::wmma::matrix_b> ? 91
                                                                      : 153;
template <class Use>
constexpr int place(int l, int e) {
  return (l * 8 + e) * scatter<Use> % 256;
}
template <class Use>
struct Places {  // the other way round: where element p is
  unsigned char at[256];
  constexpr Places() : at() {
    for (int i = 0; i < 256; ++i) at[place<Use>(i / 8, i % 8)] = static_cast<unsigned char>(i);
  }
};
template <class Use>
inline constexpr Places<Use> places;

inline float widen(float v) {
  return v;
}
inline float widen(__nv_bfloat16 v) {
  return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16);
}

// The warp meets, without ordering memory.
inline void meet(const char* what, int line) {
  const unsigned char* slots;
  exchange(~0u, &line, sizeof line, what, line, false, &slots);
}

// Calls f(offset in memory, element) for the 8 elements of this lane.
template <class Use, class T, class F>
void for_elements(const T* p, unsigned step, bool by_columns, const char* what, int line, F&& f) {
  meet(what, line);
  if (reinterpret_cast<uintptr_t>(p) % 32 != 0 || step * sizeof(T) % 16 != 0)
    forbidden(what, "memory off 32 bytes, or rows off 16", line);
  for (int e = 0; e < 8; ++e) {
    const unsigned r = static_cast<unsigned>(place<Use>(lane, e)) / 16;
    const unsigned c = static_cast<unsigned>(place<Use>(lane, e)) % 16;
    f(by_columns ? c * step + r : r * step + c, e);
  }
}

}  // namespace cuda_on_cpu

namespace nvcuda::wmma {

template <class F>
void fill_fragment(F& f, float v) {
  for (float& x : f.x) x = v;
}

template <class Use, class T, class Layout>
void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout>& f, const T* p, unsigned step,
                      int line = __builtin_LINE()) {
  cuda_on_cpu::for_elements<Use>(p, step, std::is_same_v<Layout, col_major>, "load_matrix_sync",
                                 line, [&](unsigned at, int e) { f.x[e] = p[at]; });
}
inline void load_matrix_sync(fragment<accumulator, 16, 16, 16, float>& f, const float* p,
                             unsigned step, layout_t layout, int line = __builtin_LINE()) {
  cuda_on_cpu::for_elements<accumulator>(p, step, layout == mem_col_major, "load_matrix_sync", line,
                                         [&](unsigned at, int e) { f.x[e] = p[at]; });
}
inline void store_matrix_sync(float* p, const fragment<accumulator, 16, 16, 16, float>& f,
                              unsigned step, layout_t layout, int line = __builtin_LINE()) {
  cuda_on_cpu::for_elements<accumulator>(p, step, layout == mem_col_major, "store_matrix_sync",
                                         line, [&](unsigned at, int e) { p[at] = f.x[e]; });
}

// Each lane sums what its elements of d need from the fragments of all lanes: they lie on other
// stacks, and the detector must not take that for a race.
template <class A, class B>
__attribute__((no_sanitize("thread"))) void sum_products(const unsigned char* slots, const float* c,
                                                         float* sums) {
  const A* left[32];
  const B* right[32];
  for (int l = 0; l < 32; ++l) {
    left[l] = *reinterpret_cast<const A* const*>(slots + 16 * l);
    right[l] = *reinterpret_cast<const B* const*>(slots + 16 * l + 8);
  }
  for (int e = 0; e < 8; ++e) {
    const int p = cuda_on_cpu::place<accumulator>(cuda_on_cpu::lane, e);
    sums[e] = c[e];
    for (int k = 0; k < 16; ++k) {
      const int i = cuda_on_cpu::places<matrix_a>.at[p / 16 * 16 + k];
      const int j = cuda_on_cpu::places<matrix_b>.at[k * 16 + p % 16];
      sums[e] +=
          cuda_on_cpu::widen(left[i / 8]->x[i % 8]) * cuda_on_cpu::widen(right[j / 8]->x[j % 8]);
    }
  }
}

template <class T, class LayoutA, class LayoutB>
void mma_sync(fragment<accumulator, 16, 16, 16, float>& d,
              const fragment<matrix_a, 16, 16, 16, T, LayoutA>& a,
              const fragment<matrix_b, 16, 16, 16, T, LayoutB>& b,
              const fragment<accumulator, 16, 16, 16, float>& c, int line = __builtin_LINE()) {
  const void* mine[2] = {&a, &b};
  const unsigned char* slots;
  cuda_on_cpu::exchange(~0u, mine, sizeof mine, "mma_sync", line, false, &slots);
  float sums[8];
  sum_products<std::remove_reference_t<decltype(a)>, std::remove_reference_t<decltype(b)>>(
      slots, c.x, sums);
  cuda_on_cpu::meet("mma_sync", line);  // all have read the fragments
  for (int e = 0; e < 8; ++e) d.x[e] = sums[e];
}

}  // namespace nvcuda::wmma
