// The CUDA runtime that emulated/cuda_runtime.h declares. In queued mode a stream is a list of
// things to do, and at every call a random stream goes on by a random number of steps: the device
// may run ahead of the host or lag behind, and streams overtake each other wherever no event orders
// them. So what lacks an event goes wrong in some order, and a seed repeats the order. One lock
// guards it all, also the fibers of scheduler.cpp, which are one OS thread's.
#include <cuda_runtime.h>

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

namespace {

using cuda_on_cpu::streams;

struct Mark {  // an event's records: issued, and reached by their stream
  uint64_t issued = 0, reached = 0;
  const char* role = "none";  // of the stream that recorded it last
};

struct Item {
  std::function<void()> run{};
  std::function<bool()> poll{};
  std::shared_ptr<Mark> waits_for{}, reaches{};
  uint64_t until = 0;
};

}  // namespace

// What a stream was asked to do while it was captured, arguments as they were then.
struct CUgraph_st {
  std::vector<std::function<void()>> nodes;
};
struct CUgraphExec_st : CUgraph_st {};
struct CUstream_st {
  int device;
  const char* role;  // by priority: what computes, and what communicates
  std::deque<Item> items;
  cudaGraph_t capture = nullptr;
};
struct CUevent_st {
  int device;
  std::shared_ptr<Mark> mark = std::make_shared<Mark>();
};

namespace {

std::recursive_mutex mutex;
thread_local int current_device = 0;
thread_local bool in_host_function = false;
uint64_t state = 0;
std::vector<cudaStream_t> all;
std::map<char*, size_t> registered;  // of the host's memory

// SplitMix64. Not <random>'s: scheduler.cpp has that without the race detector's instrumentation,
// and the linker would take either.
uint64_t draw() {
  uint64_t z = state += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

bool can_run(const CUstream_st* stream) {
  if (stream->items.empty()) return false;
  const Item& item = stream->items.front();
  return !item.waits_for || item.waits_for->reached >= item.until;
}

// One thing of one stream. False if there is none, or it is not ready yet.
bool step() {
  std::vector<cudaStream_t> able;
  for (cudaStream_t stream : all)
    if (can_run(stream)) able.push_back(stream);
  if (able.empty()) return false;
  cudaStream_t stream = able[draw() % able.size()];
  if (stream->items.front().poll) {
    if (!stream->items.front().poll()) return false;
    stream->items.pop_front();
    return true;
  }
  const Item item = std::move(stream->items.front());
  stream->items.pop_front();
  if (item.run) item.run();
  if (item.reaches) item.reaches->reached = std::max(item.reaches->reached, item.until);
  return true;
}

void let_run() {
  for (auto n = draw() % 3; n > 0; --n) step();
}

void refuse_in_host_function() {
  if (in_host_function) throw std::runtime_error("a host function of a stream calls CUDA");
}

void push(cudaStream_t stream, Item item) {
  refuse_in_host_function();
  if (stream->capture) throw std::runtime_error("no event or message is captured here");
  stream->items.push_back(std::move(item));
  let_run();
}

// Other threads may have to queue something first.
template <class Done>
cudaError_t run_until(const Done& done) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (;;) {
    {
      const std::lock_guard lock(mutex);
      if (done()) return cudaSuccess;
      if (step()) continue;
    }
    if (std::chrono::steady_clock::now() > limit)
      throw std::runtime_error("streams wait for each other, or for a record that never comes");
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

// "WHO<ROLE": whether the test leaves this wait out.
bool left_out(const std::string& who, const char* role) {
  return streams.queued && streams.without == who + "<" + role;
}

}  // namespace

namespace cuda_on_cpu {

void on_stream(cudaStream_t stream, std::function<void()> work) {
  const std::lock_guard lock(mutex);
  if (stream && stream->capture) return stream->capture->nodes.push_back(std::move(work));
  if (!streams.queued || !stream) return work();
  if (stream->device != current_device)
    throw std::runtime_error("a stream is used by a thread that works with another device");
  push(stream, {.run = std::move(work)});
}

void poll_on_stream(cudaStream_t stream, std::function<bool()> poll) {
  const std::lock_guard lock(mutex);
  push(stream, {.poll = std::move(poll)});
}

}  // namespace cuda_on_cpu

const char* cudaGetErrorString(cudaError_t e) {
  return e == cudaSuccess                      ? "no error"
         : e == cudaErrorMemoryAllocation      ? "out of memory"
         : e == cudaErrorNotReady              ? "not ready"
         : e == cudaErrorInvalidResourceHandle ? "invalid resource handle"
         : e == cudaErrorHostMemoryAlreadyRegistered
             ? "part or all of the requested memory range is already mapped"
         : e == cudaErrorHostMemoryNotRegistered
             ? "pointer does not correspond to a registered memory region"
         : e == cudaErrorStreamCaptureUnsupported
             ? "operation not permitted when stream is capturing"
             : "CUDA driver version is insufficient";
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = cuda_on_cpu::device.driver;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  if (!cuda_on_cpu::device.driver) return cudaErrorInsufficientDriver;
  *count = cuda_on_cpu::device.count;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  *p = {"Fibers", {}, size_t{3} << 29, 9, 0};
  p->uuid.bytes[0] = static_cast<char>(device + 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0, *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  const std::lock_guard lock(mutex);
  if (all.empty()) state = streams.seed;
  all.push_back(*stream = new CUstream_st{current_device, priority < 0 ? "comm" : "compute", {}});
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  run_until([&] { return stream->items.empty(); });
  const std::lock_guard lock(mutex);
  std::erase(all, stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream && stream->capture) return cudaErrorStreamCaptureUnsupported;
  if (!stream || left_out("sync", stream->role)) return cudaSuccess;
  return run_until([&] { return stream->items.empty(); });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::lock_guard lock(mutex);
  if (!streams.queued || left_out(stream->role, event->mark->role)) return cudaSuccess;
  push(stream, {.waits_for = event->mark, .until = event->mark->issued});
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st{.device = current_device};
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  refuse_in_host_function();
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  if (!streams.queued || !stream) return cudaSuccess;
  if (event->device != stream->device) return cudaErrorInvalidResourceHandle;
  event->mark->role = stream->role;
  push(stream, {.reaches = event->mark, .until = ++event->mark->issued});
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(mutex);
  if (left_out("host", event->mark->role)) return cudaSuccess;
  let_run();
  return event->mark->reached >= event->mark->issued ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (left_out("host", event->mark->role)) return cudaSuccess;
  return run_until(
      [mark = event->mark, until = event->mark->issued] { return mark->reached >= until; });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const std::lock_guard lock(mutex);
  if (!stream || stream->capture) return cudaErrorStreamCaptureUnsupported;
  stream->capture = new CUgraph_st;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(mutex);
  *graph = std::exchange(stream->capture, nullptr);
  return *graph ? cudaSuccess : cudaErrorStreamCaptureUnsupported;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
  *count = graph->nodes.size();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st{*graph};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  for (const auto& node : exec->nodes) cuda_on_cpu::on_stream(stream, node);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* argument) {
  cuda_on_cpu::on_stream(stream, [=] {
    in_host_function = true;
    function(argument);
    in_host_function = false;
  });
  return cudaSuccess;
}

cudaError_t cudaMallocAsync(void** p, size_t bytes, cudaStream_t) {
  if (bytes > cuda_on_cpu::device.free_bytes) return cudaErrorMemoryAllocation;
  *p = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*p, 0xff, bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* p, cudaStream_t stream) {
  cuda_on_cpu::on_stream(stream, [p] { std::free(p); });
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** p, size_t bytes) {
  *p = std::malloc(bytes);
  return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeHost(void* p) {
  std::free(p);
  return cudaSuccess;
}
// Pages that two ranges share cannot be registered for both.
cudaError_t cudaHostRegister(void* p, size_t bytes, unsigned) {
  const std::lock_guard lock(mutex);
  constexpr uintptr_t page = 4096;
  const auto first = [](const char* at) { return reinterpret_cast<uintptr_t>(at) / page; };
  char* at = static_cast<char*>(p);
  size_t sum = bytes;
  for (const auto& [other, size] : registered) {
    sum += size;
    if (first(at) <= first(other + size - 1) && first(other) <= first(at + bytes - 1))
      return cudaErrorHostMemoryAlreadyRegistered;
  }
  if (sum > cuda_on_cpu::device.pinnable_bytes) return cudaErrorMemoryAllocation;
  registered[at] = bytes;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* p) {
  const std::lock_guard lock(mutex);
  return registered.erase(static_cast<char*>(p)) ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  cuda_on_cpu::on_stream(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream) {
  cuda_on_cpu::on_stream(stream, [=] { std::memset(p, value, bytes); });
  return cudaSuccess;
}
