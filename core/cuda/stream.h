// CUDA's streams and events behind core/stream.h. Read next: stream.cpp.
#pragma once

#include "core/stream.h"

struct CUstream_st;

namespace lockstep {

class CudaStream : public Stream {
 public:
  explicit CudaStream(CUstream_st* stream) : stream_(stream) {}  // somebody else's to destroy
  EventPtr record() override;
  void wait(const EventPtr& event) override;
  CUstream_st* native() const { return stream_; }

 private:
  CUstream_st* stream_;
};

}  // namespace lockstep
