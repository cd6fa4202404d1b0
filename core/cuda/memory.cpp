// Read next: module.cpp.
#include "core/cuda/memory.h"

#include <algorithm>
#include <cstring>

#include "core/cuda/check.h"
#include "core/cuda/stream.h"

namespace lockstep {

Staging::~Staging() {
  for (Slot& slot : slots_)
    if (slot.memory) static_cast<void>(cudaFreeHost(slot.memory));
}

void Staging::send(void* to, const void* from_host, size_t bytes) {
  for (size_t at = 0; at < bytes; at += slot_bytes) {
    Slot& slot = slots_[next_++ % slots_.size()];
    if (!slot.memory) check_cuda(cudaMallocHost(&slot.memory, slot_bytes), "cudaMallocHost");
    if (slot.copied) slot.copied->wait();
    const size_t count = std::min(slot_bytes, bytes - at);
    std::memcpy(slot.memory, static_cast<const std::byte*>(from_host) + at, count);
    check_cuda(cudaMemcpyAsync(static_cast<std::byte*>(to) + at, slot.memory, count,
                               cudaMemcpyDefault, stream_),
               "cudaMemcpyAsync");
    slot.copied = CudaStream(stream_).record();
  }
}

void* StreamMemory::allocate(size_t bytes) {
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

void StreamMemory::release(void* p, size_t) {
  static_cast<void>(cudaFreeAsync(p, stream_));
}

void StreamMemory::read(void* to_host, const void* here, size_t bytes) {
  if (bytes == 0) return;
  check_cuda(cudaMemcpyAsync(to_host, here, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync");
  check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

void StreamMemory::write(void* here, const void* from_host, size_t bytes) {
  staging_.send(here, from_host, bytes);
}

void StreamMemory::zero(void* here, size_t bytes) {
  if (bytes > 0) check_cuda(cudaMemsetAsync(here, 0, bytes, stream_), "cudaMemsetAsync");
}

}  // namespace lockstep
