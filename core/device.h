// Device: what a rank computes on, if that is not the CPU. Opened once, where the run starts; from
// then on everything goes through the backend, the memory and the streams it gives. Read next:
// cuda/open.h.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "core/backend.h"
#include "core/recording.h"

namespace lockstep {

// A stream with what goes through it: kernels, and memory that is taken, given back, read and
// written in the stream's order. Outlives whatever was allocated from it.
class Lane {
 public:
  virtual ~Lane() = default;
  virtual Backend& backend() = 0;
  virtual MemorySource& memory() = 0;
  // Copies to memory of the host that is pinned: there when an event that is recorded after it is
  // reached.
  virtual void read(void* pinned, const void* here, size_t bytes) = 0;
  // Calls `function` on the host when the stream has come so far, and the stream goes on when it
  // returns. It runs on a thread of the driver's and must ask nothing of the device.
  virtual void call(std::function<void()> function) = 0;
};

class Device : public Lane {
 public:
  // Another stream, of higher priority: what it does is short, and others wait for it.
  virtual std::unique_ptr<Lane> open_lane() = 0;
  // Of what this one queues.
  virtual Recorder& recorder() = 0;
  // Pins memory of the host until the handle goes, so that the device copies there and from there
  // by itself. Exit::config if the driver refuses.
  virtual std::shared_ptr<void> pin(std::span<std::byte> host_memory) = 0;
  // Before any other call of a thread than the one that opened the device.
  virtual void use() = 0;
};

}  // namespace lockstep
