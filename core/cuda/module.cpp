// The module's one entry: finds the device, makes its stream, and gives out memory in that stream's
// order. Read next: cuda_backend.cpp.
#include <cuda_runtime.h>

#include "core/cuda/cuda_backend.h"
#include "core/cuda/open.h"

namespace lockstep {

namespace {

void check_cuda(cudaError_t result, const char* what) {
  if (result != cudaSuccess)
    fail(Exit::internal, "[cuda] {} failed: {}", what, cudaGetErrorString(result));
}

// Memory of the stream: taken and given back in its order, so nobody waits. The Allocator above
// keeps blocks for reuse; what it gives to a new owner is used by later work of the same stream.
class StreamMemory : public MemorySource {
 public:
  explicit StreamMemory(cudaStream_t stream) : stream_(stream) {}
  void* allocate(size_t bytes) override {
    void* p = nullptr;
    const cudaError_t result = cudaMallocAsync(&p, bytes, stream_);
    if (result == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());  // it would be reported again by the next call
      fail(Exit::config,
           "[memory] the GPU refused {} bytes; a smaller train.micro_batch, train.recompute or a "
           "higher dist.zero_stage needs less",
           bytes);
    }
    check_cuda(result, "cudaMallocAsync");
    return p;
  }
  void release(void* p, size_t) override { static_cast<void>(cudaFreeAsync(p, stream_)); }

 private:
  cudaStream_t stream_;
};

// Owned apart from the device, so that it outlives what uses it.
struct OwnedStream {
  cudaStream_t stream = nullptr;
  OwnedStream() {
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~OwnedStream() { static_cast<void>(cudaStreamDestroy(stream)); }
  OwnedStream(const OwnedStream&) = delete;
};

class Device : public CudaDevice {
 public:
  explicit Device(int index) : memory_(owned_.stream), backend_(owned_.stream) {
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
    description_ =
        fmt::format("{}, {:.1f} GiB, sm_{}{}", properties.name,
                    static_cast<double>(properties.totalGlobalMem) / static_cast<double>(1 << 30),
                    properties.major, properties.minor);
  }
  std::string description() const override { return description_; }
  Backend& backend() override { return backend_; }
  MemorySource& memory() override { return memory_; }
  void copy(void* to, const void* from, size_t bytes) override {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, owned_.stream),
               "cudaMemcpyAsync");
    synchronize();
  }
  void synchronize() override {
    check_cuda(cudaStreamSynchronize(owned_.stream), "cudaStreamSynchronize");
  }

 private:
  OwnedStream owned_;
  StreamMemory memory_;
  CudaBackend backend_;
  std::string description_;
};

void check_device(int index) {
  int driver = 0, devices = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
    fail(Exit::config, "no CUDA device: driver not found; use device: cpu");
  const cudaError_t result = cudaGetDeviceCount(&devices);
  if (result != cudaSuccess || devices == 0)
    fail(Exit::config, "no CUDA device: {}; use device: cpu",
         result == cudaSuccess ? "none is visible" : cudaGetErrorString(result));
  if (index < 0 || index >= devices)
    fail(Exit::config,
         "no CUDA device {}: {} visible, counted from 0; fewer ranks on this host "
         "are right",
         index, devices);
  check_cuda(cudaSetDevice(index), "cudaSetDevice");
}

}  // namespace

}  // namespace lockstep

extern "C" lockstep::CudaDevice* lockstep_open_cuda(int index) {
  lockstep::check_device(index);
  return new lockstep::Device(index);
}
