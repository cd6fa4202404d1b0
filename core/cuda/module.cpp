// The module's entries: find the devices, open one, and make its streams. Read next: memory.h,
// cuda_backend.cpp.
#include "core/cuda/check.h"
#include "core/cuda/cuda_backend.h"
#include "core/cuda/graph.h"
#include "core/cuda/memory.h"
#include "core/cuda/open.h"

namespace lockstep {

namespace {

enum class Priority { normal, high };

// Owned apart from the lane, so that it outlives what uses it.
struct OwnedStream {
  cudaStream_t stream = nullptr;
  explicit OwnedStream(Priority priority) {
    int least = 0, greatest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest),
               "cudaDeviceGetStreamPriorityRange");
    check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                            priority == Priority::high ? greatest : least),
               "cudaStreamCreateWithPriority");
  }
  ~OwnedStream() { static_cast<void>(cudaStreamDestroy(stream)); }
  OwnedStream(const OwnedStream&) = delete;
};

class PinnedMemory {
 public:
  explicit PinnedMemory(std::span<std::byte> memory) : at_(memory.data()) {
    const cudaError_t result = cudaHostRegister(at_, memory.size(), cudaHostRegisterPortable);
    if (result == cudaSuccess) return;
    static_cast<void>(cudaGetLastError());  // it would be reported again by the next call
    fail(Exit::config,
         "[memory] CUDA cannot pin {} bytes of the host's memory: {}; a smaller dist.bucket_mb "
         "needs less",
         memory.size(), cudaGetErrorString(result));
  }
  ~PinnedMemory() { static_cast<void>(cudaHostUnregister(at_)); }
  PinnedMemory(const PinnedMemory&) = delete;

 private:
  std::byte* const at_;
};

// "NVIDIA H200, 139.8 GiB, sm_90"
std::string describe(int index) {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  return fmt::format("{}, {:.1f} GiB, sm_{}{}", properties.name,
                     static_cast<double>(properties.totalGlobalMem) / static_cast<double>(1 << 30),
                     properties.major, properties.minor);
}

class CudaLane : public Lane {
 public:
  CudaLane(Priority priority, int index, Fp32Products products)
      : owned_(priority),
        memory_(owned_.stream),
        backend_(owned_.stream, describe(index), products) {}
  ~CudaLane() override { static_cast<void>(cudaStreamSynchronize(owned_.stream)); }
  Backend& backend() override { return backend_; }
  cudaStream_t stream() const { return owned_.stream; }
  MemorySource& memory() override { return memory_; }
  void read(void* pinned, const void* here, size_t bytes) override {
    if (bytes == 0) return;
    check_cuda(cudaMemcpyAsync(pinned, here, bytes, cudaMemcpyDefault, owned_.stream),
               "cudaMemcpyAsync");
  }
  void call(std::function<void()> function) override {
    using Function = std::function<void()>;
    const auto run = [](void* p) { (*std::unique_ptr<Function>(static_cast<Function*>(p)))(); };
    check_cuda(cudaLaunchHostFunc(owned_.stream, run, new Function(std::move(function))),
               "cudaLaunchHostFunc");
  }

 private:
  OwnedStream owned_;
  StreamMemory memory_;
  CudaBackend backend_;
};

class CudaDevice : public Device {
 public:
  CudaDevice(int index, Fp32Products products)
      : index_(index),
        products_(products),
        lane_(Priority::normal, index, products),
        recorder_(lane_.stream()) {}
  Backend& backend() override { return lane_.backend(); }
  MemorySource& memory() override { return lane_.memory(); }
  void read(void* pinned, const void* here, size_t bytes) override {
    lane_.read(pinned, here, bytes);
  }
  void call(std::function<void()> function) override { lane_.call(std::move(function)); }
  std::unique_ptr<Lane> open_lane() override {
    return std::make_unique<CudaLane>(Priority::high, index_, products_);
  }
  Recorder& recorder() override { return recorder_; }
  std::shared_ptr<void> pin(std::span<std::byte> host_memory) override {
    return std::make_shared<PinnedMemory>(host_memory);
  }
  void use() override { check_cuda(cudaSetDevice(index_), "cudaSetDevice"); }

 private:
  const int index_;
  const Fp32Products products_;
  CudaLane lane_;
  CudaRecorder recorder_;
};

int visible_devices() {
  int driver = 0, devices = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
    fail(Exit::config, "no CUDA device: driver not found; use device: cpu");
  const cudaError_t result = cudaGetDeviceCount(&devices);
  if (result != cudaSuccess || devices == 0)
    fail(Exit::config, "no CUDA device: {}; use device: cpu",
         result == cudaSuccess ? "none is visible" : cudaGetErrorString(result));
  return devices;
}

}  // namespace

}  // namespace lockstep

extern "C" void lockstep_cuda_uuids(std::vector<std::string>& uuids) {
  using namespace lockstep;
  const int devices = visible_devices();
  for (int i = 0; i < devices; ++i) {
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties");
    std::string uuid;
    for (char byte : properties.uuid.bytes)
      uuid += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    uuids.push_back(std::move(uuid));
  }
}

extern "C" lockstep::Device* lockstep_open_cuda(int index, lockstep::Fp32Products products) {
  using namespace lockstep;
  const int devices = visible_devices();
  if (index < 0 || index >= devices)
    fail(Exit::config,
         "no CUDA device {}: {} visible, counted from 0; fewer ranks on this host "
         "are right",
         index, devices);
  check_cuda(cudaSetDevice(index), "cudaSetDevice");
  return new CudaDevice(index, products);
}
