// A recording is a list of CUDA graphs, each captured from the stream, and of what the host does
// between them. Capturing runs nothing, so a graph is launched as soon as it is complete: recording
// computes what it records. A graph ends wherever the stream is ordered with others: events stay
// outside, real ones each time, so that the communicator's stream sees nothing unusual. Read next:
// ../../examples/recorded_steps.h.
#include "core/cuda/graph.h"

#include <vector>

#include "core/cuda/check.h"

namespace lockstep {

namespace {

struct Destroy {
  void operator()(cudaGraphExec_t graph) const { static_cast<void>(cudaGraphExecDestroy(graph)); }
};
using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, Destroy>;

class CudaRecording;
thread_local CudaRecording* under_way = nullptr;

class CudaRecording : public Recording, private HostParts {
 public:
  CudaRecording(cudaStream_t stream, const std::function<void()>& body) : stream_(stream) {
    check(!under_way, "[cuda graph] a recording within a recording");
    under_way = this;
    const HostPartsScope parts(this);
    try {
      resume();
      body();
      pause();
    } catch (...) {
      give_up();
      throw;
    }
    under_way = nullptr;
  }

  void replay() override {
    for (const Part& part : parts_)
      if (part.on_host)
        part.on_host();
      else
        check_cuda(cudaGraphLaunch(part.kernels.get(), stream_), "cudaGraphLaunch");
  }

  cudaStream_t stream() const { return stream_; }

  void apart(const std::function<void()>& f) {
    if (!capturing_) return f();
    pause();
    f();
    resume();
  }

 private:
  struct Part {
    Graph kernels;
    std::function<void()> on_host;  // else
  };

  // A part may itself order streams, and thereby end the graph before it.
  void on_host(const std::function<void()>& f) override {
    const HostPartsScope none(nullptr);
    f();
    parts_.push_back({nullptr, f});
  }
  void between_kernels(const std::function<void()>& f) override {
    apart([&] { on_host(f); });
  }

  void resume() {
    check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
               "cudaStreamBeginCapture");
    capturing_ = true;
  }

  void pause() {
    cudaGraph_t captured = nullptr;
    capturing_ = false;
    check_cuda(cudaStreamEndCapture(stream_, &captured), "cudaStreamEndCapture");
    size_t nodes = 0;
    cudaGraphExec_t graph = nullptr;
    cudaError_t result = cudaGraphGetNodes(captured, nullptr, &nodes);
    if (result == cudaSuccess && nodes > 0) result = cudaGraphInstantiate(&graph, captured, 0);
    static_cast<void>(cudaGraphDestroy(captured));
    check_cuda(result, "cudaGraphInstantiate");
    if (!graph) return;
    parts_.push_back({Graph(graph), nullptr});
    check_cuda(cudaGraphLaunch(graph, stream_), "cudaGraphLaunch");
  }

  void give_up() {
    under_way = nullptr;
    cudaGraph_t captured = nullptr;
    if (capturing_ && cudaStreamEndCapture(stream_, &captured) == cudaSuccess)
      static_cast<void>(cudaGraphDestroy(captured));
  }

  const cudaStream_t stream_;
  bool capturing_ = false;
  std::vector<Part> parts_;
};

}  // namespace

std::unique_ptr<Recording> CudaRecorder::record(const std::function<void()>& body) {
  return std::make_unique<CudaRecording>(stream_, body);
}

void between_graphs(CUstream_st* stream, const std::function<void()>& f) {
  if (under_way && under_way->stream() == stream)
    under_way->apart(f);
  else
    f();
}

}  // namespace lockstep
