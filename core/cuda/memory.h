// Device memory in a stream's order. Read next: memory.cpp.
#pragma once

#include <array>

#include "core/allocator.h"
#include "core/stream.h"

struct CUstream_st;

namespace lockstep {

// Pinned memory of the host, which the device copies from while the host goes on. Values are put
// into one slot after the other, and a slot is written again when its last copy has run.
class Staging {
 public:
  explicit Staging(CUstream_st* stream) : stream_(stream) {}
  ~Staging();
  Staging(const Staging&) = delete;

  void send(void* to, const void* from_host, size_t bytes);

 private:
  static constexpr size_t slot_bytes = size_t{1} << 20;
  struct Slot {
    void* memory = nullptr;  // pinned at first use
    EventPtr copied;
  };
  CUstream_st* stream_;
  std::array<Slot, 4> slots_;
  size_t next_ = 0;
};

// Taken and given back in the stream's order, so nobody waits. The Allocator above keeps blocks for
// reuse; what it gives to a new owner is used by later work of the same stream. One thread at a
// time.
class StreamMemory : public MemorySource {
 public:
  explicit StreamMemory(CUstream_st* stream) : stream_(stream), staging_(stream) {}
  void* allocate(size_t bytes) override;
  void release(void* p, size_t bytes) override;
  bool on_host() const override { return false; }
  void read(void* to_host, const void* here, size_t bytes) override;
  void write(void* here, const void* from_host, size_t bytes) override;
  void zero(void* here, size_t bytes) override;

 private:
  CUstream_st* stream_;
  Staging staging_;
};

}  // namespace lockstep
