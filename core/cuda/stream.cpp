// Read next: module.cpp.
#include "core/cuda/stream.h"

#include "core/cuda/check.h"
#include "core/cuda/graph.h"

namespace lockstep {

namespace {

class CudaEvent : public Event {
 public:
  explicit CudaEvent(CUstream_st* stream) {
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    check_cuda(cudaEventRecord(event, stream), "cudaEventRecord");
  }
  ~CudaEvent() override { static_cast<void>(cudaEventDestroy(event)); }
  CudaEvent(const CudaEvent&) = delete;

  bool reached() const override {
    const cudaError_t result = cudaEventQuery(event);
    if (result != cudaErrorNotReady) check_cuda(result, "cudaEventQuery");
    return result == cudaSuccess;
  }
  void wait() const override { check_cuda(cudaEventSynchronize(event), "cudaEventSynchronize"); }

  cudaEvent_t event = nullptr;
};

}  // namespace

EventPtr CudaStream::record() {
  EventPtr event;
  between_graphs(stream_, [&] { event = std::make_shared<CudaEvent>(stream_); });
  return event;
}

void CudaStream::wait(const EventPtr& event) {
  if (!event) return;
  between_graphs(stream_, [&] {
    if (const auto* other = dynamic_cast<const CudaEvent*>(event.get()))
      check_cuda(cudaStreamWaitEvent(stream_, other->event, 0), "cudaStreamWaitEvent");
    else
      event->wait();
  });
}

}  // namespace lockstep
