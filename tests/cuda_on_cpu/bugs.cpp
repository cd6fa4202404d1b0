// Kernels with planted bugs, one for each kind of mistake that the tests of this folder are there
// to find, and one without: `bugs NAME ORDER` says "clean", "wrong value" or what the scheduler
// reported, if a sanitizer does not end it first. bugs.sh says what must find which.
#include <cuda_runtime.h>
#include <mma.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <vector>

using cuda_on_cpu::dynamic_shared;
using cuda_on_cpu::launch;

constexpr unsigned all_lanes = 0xffffffffu;
constexpr unsigned n = 64;  // threads: two warps

// The sum of 0 .. 63 in every thread, by a tree in shared memory. kinds of mistake: 1 no barrier
// after the write, 2 none before the overwrite, 3 a barrier that only some reach.
template <int mistake>
__global__ void tree(float* y) {
  SHARED_ARRAY(float, part, [n]);
  for (int round = 0; round < (mistake == 1 ? 1 : 2); ++round) {
    if (mistake != 2) __syncthreads();
    part[threadIdx.x] = static_cast<float>(threadIdx.x);
    if (mistake == 3 && threadIdx.x < 32) __syncthreads();
    if (mistake != 1) __syncthreads();
    float sum = 0;
    for (unsigned i = 0; i < n; ++i) sum += part[(threadIdx.x + i) % n];
    y[threadIdx.x] = sum;
  }
}

// Lanes of a warp hand a value to their neighbour through shared memory.
template <bool synchronised>
__global__ void neighbour(float* y) {
  SHARED_ARRAY(float, row, [n]);
  row[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (synchronised) __syncwarp();
  y[threadIdx.x] = row[threadIdx.x / 32 * 32 + (threadIdx.x + 1) % 32];
}

// A warp multiplies b by the identity on tensor cores. Kinds of mistake: 1 no barrier before the
// factors are loaded, 2 none after the result is stored, 3 a factor off its 32 bytes.
template <int mistake>
__global__ void tensor_cores(float* y) {
  namespace wmma = nvcuda::wmma;
  SHARED_ARRAY(__nv_bfloat16, a, [n / 32][256 + 16]);
  SHARED_ARRAY(__nv_bfloat16, b, [n / 32][256]);
  SHARED_ARRAY(float, product, [n / 32][256]);
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto narrow = [](unsigned x) {  // exact: at most 8 bits
    return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(x)) >> 16);
  };
  __nv_bfloat16* factor = a[warp] + (mistake == 3 ? 8 : 0);
  for (unsigned i = lane; i < 256; i += 32) {
    factor[i].bits = narrow(i / 16 == i % 16);
    b[warp][i].bits = narrow(i);
  }
  if (mistake != 1) __syncwarp();
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> left;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::row_major> right;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums;
  wmma::fill_fragment(sums, 0.0f);
  wmma::load_matrix_sync(left, factor, 16);
  wmma::load_matrix_sync(right, b[warp], 16);
  wmma::mma_sync(sums, left, right, sums);
  wmma::store_matrix_sync(product[warp], sums, 16, wmma::mem_row_major);
  if (mistake != 2) __syncwarp();
  y[threadIdx.x] = product[warp][8 * lane];
}

__global__ void two_blocks_one_element(float* y) {
  y[threadIdx.x] = static_cast<float>(threadIdx.x);  // the same in both, so no value is wrong
}

__global__ void early_exit(float* y) {
  if (threadIdx.x % 32 >= 20) return;
  y[threadIdx.x] = __shfl_xor_sync(all_lanes, 1.0f, 1);
}

__global__ void outside_mask(float* y) {
  y[threadIdx.x] = __shfl_xor_sync(0xffffu, 1.0f, 1);
}

__global__ void exit_before_barrier(float* y) {
  if (threadIdx.x == 5) return;
  __syncthreads();
  y[threadIdx.x] = 0;
}

__global__ void shared_overrun(float* y) {
  float* row = dynamic_shared<float>();
  row[threadIdx.x + 1] = 1;
  y[threadIdx.x] = 0;
}

__global__ void global_overrun(float* y) {
  y[threadIdx.x + 1] = 0;
}

__global__ void unset_shared(float* y) {
  SHARED_ARRAY(float, row, [n]);
  if (threadIdx.x > 0) row[threadIdx.x] = 1;
  __syncthreads();
  y[threadIdx.x] = row[(threadIdx.x + 1) % n];
}

__global__ void misaligned(float* y) {
  if (threadIdx.x > 0) return;
  reinterpret_cast<float4*>(y + 1)[0] = make_float4(0, 0, 0, 0);
}

int main(int argc, char** argv) {
  const std::string bug = argc > 1 ? argv[1] : "";
  const std::string order = argc > 2 ? argv[2] : "forward";
  cuda_on_cpu::options.order = order == "forward"   ? cuda_on_cpu::Order::forward
                               : order == "reverse" ? cuda_on_cpu::Order::reverse
                                                    : cuda_on_cpu::Order::random;
  const auto run = [](void (*kernel)(float*), unsigned blocks, std::function<float(unsigned)> want,
                      size_t shared_bytes = 0) {
    std::vector<float> y(n);
    launch(kernel, dim3(blocks), dim3(n), shared_bytes, nullptr, y.data());
    for (unsigned i = 0; i < n; ++i)
      if (!(y[i] == want(i))) return false;
    return true;
  };
  const auto total = [](unsigned) { return 2016.0f; };
  const auto next = [](unsigned i) { return static_cast<float>(i / 32 * 32 + (i + 1) % 32); };
  const auto eighth = [](unsigned i) { return static_cast<float>(i % 32 * 8); };
  const auto zero = [](unsigned) { return 0.0f; };
  const auto one = [](unsigned) { return 1.0f; };
  const std::map<std::string, std::function<bool()>> bugs{
      {"none",
       [&] {
         return run(tree<0>, 3, total) && run(neighbour<true>, 1, next) &&
                run(tensor_cores<0>, 1, eighth);
       }},
      {"no_syncwarp_before_load", [&] { return run(tensor_cores<1>, 1, eighth); }},
      {"no_syncwarp_after_store", [&] { return run(tensor_cores<2>, 1, eighth); }},
      {"factor_off_32_bytes", [&] { return run(tensor_cores<3>, 1, eighth); }},
      {"no_barrier_after_write", [&] { return run(tree<1>, 1, total); }},
      {"no_barrier_before_overwrite", [&] { return run(tree<2>, 1, total); }},
      {"divergent_barrier", [&] { return run(tree<3>, 1, total); }},
      {"no_syncwarp", [&] { return run(neighbour<false>, 1, next); }},
      {"two_blocks_one_element",
       [&] {
         return run(two_blocks_one_element, 2, [](unsigned i) { return static_cast<float>(i); });
       }},
      {"early_exit", [&] { return run(early_exit, 1, one); }},
      {"outside_mask", [&] { return run(outside_mask, 1, one); }},
      {"exit_before_barrier", [&] { return run(exit_before_barrier, 1, zero); }},
      {"shared_overrun", [&] { return run(shared_overrun, 1, zero, n * sizeof(float)); }},
      {"global_overrun", [&] { return run(global_overrun, 1, zero); }},
      {"unset_shared", [&] { return run(unset_shared, 1, one); }},
      {"misaligned", [&] { return run(misaligned, 1, zero); }},
  };
  if (!bugs.contains(bug)) return std::printf("no bug \"%s\"\n", bug.c_str()), 64;
  try {
    const bool right = bugs.at(bug)();
    std::puts(right ? "clean" : "wrong value");
    return right ? 0 : 1;
  } catch (const std::exception& e) {
    std::printf("error: %s\n", e.what());
    return 1;
  }
}
