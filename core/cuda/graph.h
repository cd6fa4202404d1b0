// Recordings (../recording.h) as CUDA graphs. Read next: graph.cpp.
#pragma once

#include "core/recording.h"

struct CUstream_st;

namespace lockstep {

class CudaRecorder : public Recorder {
 public:
  explicit CudaRecorder(CUstream_st* stream) : stream_(stream) {}  // somebody else's to destroy
  std::unique_ptr<Recording> record(const std::function<void()>& body) override;

 private:
  CUstream_st* const stream_;
};

// Calls `f`, which orders `stream` and others by events. If this thread records on the stream, what
// it has queued so far becomes a graph and runs, and recording goes on behind f.
void between_graphs(CUstream_st* stream, const std::function<void()>& f);

}  // namespace lockstep
