// Stands in for NVIDIA's <cuda_runtime.h>, so that g++ compiles the kernels of core/cuda and
// ../scheduler.cpp runs them block by block, every CUDA thread as a fiber. Holds what those kernels
// use and nothing else. Barriers and shuffles note the line they were called from, for reports.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)

using cudaStream_t = struct CUstream_st*;
struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr explicit dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct alignas(16) float4 {
  float x, y, z, w;
};
// The kernels use it to move what was stored as something else.
struct __attribute__((may_alias, aligned(16))) uint4 {
  unsigned x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

namespace cuda_on_cpu {

enum class Order { forward, reverse, random };

struct Options {
  Order order = Order::forward;
  uint64_t seed = 1;         // of the random order
  size_t stack = 256 << 10;  // bytes for each fiber
  bool strict_exit = true;   // a thread may not end while others wait for it
};
inline Options options;

inline int lane = 0;                    // of the running thread, in its warp
inline void* dynamic_memory = nullptr;  // the block's dynamic shared memory

// Runs body(argument) once per CUDA thread. Throws std::runtime_error naming block and thread where
// a kernel does what CUDA forbids: divergent barriers, a lane outside its mask, a deadlock, a shape
// beyond the limits.
void run_grid(void (*body)(void*), void* argument, dim3 grid, dim3 block, size_t shared_bytes);
void barrier(int line);
// Meets the lanes named in mask; slots() then holds 16 bytes for each lane; returns those that
// came.
uint32_t exchange(uint32_t mask, const void* value, unsigned bytes, const char* what, int line,
                  bool orders_memory, const unsigned char** slots);
void copy_bytes(void* to, const void* from, unsigned n);
// Ends the grid with an error.
[[noreturn]] void forbidden(const char* what, const char* why, int line);
// This block's memory for a SHARED_ARRAY, filled with NaN at block start.
void* shared_array(const void* key, size_t bytes);

template <class T>
T fetch(uint32_t mask, T value, int source, const char* what, int line) {
  static_assert(sizeof(T) <= 16);
  const unsigned char* slots;
  const uint32_t present = exchange(mask, &value, sizeof value, what, line, false, &slots);
  static const uint64_t poison[2] = {~0ull, ~0ull};  // what a lane that is not there "sends"
  const void* from = present >> source & 1 ? static_cast<const void*>(slots + 16 * source) : poison;
  T result;
  copy_bytes(&result, from, sizeof result);
  return result;
}

template <class T>
T* dynamic_shared() {
  return static_cast<T*>(dynamic_memory);
}

// Runs `work` when the stream has come so far: at once, or in queued mode some time later, on the
// thread of whoever calls the runtime then.
void on_stream(cudaStream_t stream, std::function<void()> work);
// The same for what may take several looks: until `poll` returns true.
void poll_on_stream(cudaStream_t stream, std::function<bool()> poll);

template <class... P, class... A>
void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
            A&&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  using Call = std::tuple<void (*)(P...), P...>;
  on_stream(stream, [call = Call(kernel, static_cast<P>(std::forward<A>(arguments))...), grid,
                     block, shared_bytes]() mutable {
    run_grid(
        [](void* p) { std::apply([](auto f, auto... x) { f(x...); }, *static_cast<Call*>(p)); },
        &call, grid, block, shared_bytes);
  });
}

// What the runtime pretends.
struct Device {
  int driver = 13000, count = 1;
  size_t free_bytes = size_t{1} << 40;
  size_t pinnable_bytes = size_t{1} << 40;  // of the host, at once
};
inline Device device;

struct StreamOptions {
  bool queued = false;  // else work has run when the call that asked for it returns
  uint64_t seed = 1;    // of the order in which streams advance
  // A wait that is left out, to see that a test fails without it: "comm<compute" (a stream for an
  // event), "host<comm" (the host for an event), "sync<comm" (the host for a stream).
  std::string without;
};
inline StreamOptions streams;

}  // namespace cuda_on_cpu

#define SHARED_ARRAY(type, name, extents) \
  static char name##_key;                 \
  using name##_type = type extents;       \
  auto& name =                            \
      *static_cast<name##_type*>(cuda_on_cpu::shared_array(&name##_key, sizeof(name##_type)))

inline void __syncthreads(int line = __builtin_LINE()) {
  cuda_on_cpu::barrier(line);
}
inline void __syncwarp(unsigned mask = ~0u, int line = __builtin_LINE()) {
  const unsigned char* slots;
  cuda_on_cpu::exchange(mask, &mask, sizeof mask, "__syncwarp", line, true, &slots);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, int line = __builtin_LINE()) {
  const int from = cuda_on_cpu::lane ^ bits;
  const bool inside = from / width <= cuda_on_cpu::lane / width;
  return cuda_on_cpu::fetch(mask, value, inside ? from : cuda_on_cpu::lane, "__shfl_xor_sync",
                            line);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
  const unsigned char* slots;
  const uint32_t present = cuda_on_cpu::exchange(mask, &predicate, sizeof predicate,
                                                 "__ballot_sync", line, false, &slots);
  unsigned ballot = 0;
  for (int i = 0; i < 32; ++i) {
    int p = 0;
    if (present >> i & 1) cuda_on_cpu::copy_bytes(&p, slots + 16 * i, sizeof p);
    ballot |= static_cast<unsigned>(p != 0) << i;
  }
  return ballot;
}
inline unsigned atomicOr(unsigned* p, unsigned bits) {
  return __atomic_fetch_or(p, bits, __ATOMIC_RELAXED);
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}

// The runtime (../runtime.cpp), with devices that tests can take away or make small. Device memory
// is host memory full of NaN.
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorHostMemoryAlreadyRegistered = 712,
  cudaErrorHostMemoryNotRegistered = 713,
  cudaErrorStreamCaptureUnsupported = 900
};
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2;
constexpr unsigned cudaHostRegisterPortable = 1;
using cudaEvent_t = struct CUevent_st*;
using cudaGraph_t = struct CUgraph_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;
using cudaGraphNode_t = struct CUgraphNode_st*;
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
struct cudaUUID_t {
  char bytes[16];
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  size_t totalGlobalMem;
  int major, minor;
};

const char* cudaGetErrorString(cudaError_t e);
cudaError_t cudaGetLastError();
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device);
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaMallocAsync(void** p, size_t bytes, cudaStream_t stream);
cudaError_t cudaFreeAsync(void* p, cudaStream_t stream);
cudaError_t cudaMallocHost(void** p, size_t bytes);
cudaError_t cudaFreeHost(void* p);
cudaError_t cudaHostRegister(void* p, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void* p);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* argument);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream);
