// What a thread queues on a device, kept so that it can be queued again by a few calls: in a small
// model's step kernels are so short that launching them takes longer than running them. The host's
// code runs once, so what it decides, and every value it passes, is the same in each replay; what
// changes must lie in memory that kernels read, as step_buffer.h has it. On the CPU there is
// nothing to record. Read next: cuda/graph.cpp.
#pragma once

#include <functional>
#include <memory>

namespace lockstep {

class Recording {
 public:
  virtual ~Recording() = default;
  // Queues it all again, on the thread that recorded it.
  virtual void replay() = 0;
};

class Recorder {
 public:
  virtual ~Recorder() = default;
  // Runs `body`, and keeps what it queues on this thread's backend. What body's kernels work on
  // must stay theirs for as long as the recording is replayed, and body must neither wait for the
  // device nor ask it for memory: run it before, twice, with an allocator of its own.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& body) = 0;

  // Of the calling thread; null where nothing can be recorded.
  static Recorder* current();
};

class RecorderScope {
 public:
  explicit RecorderScope(Recorder* recorder);
  ~RecorderScope();
  RecorderScope(const RecorderScope&) = delete;

 private:
  Recorder* previous_;
};

// For code that may be part of a body: the host's share of it, which is to be done in each replay.
// Runs `f` now. The first kind queues no kernels; it may wait for other streams. The second kind
// runs when the kernels before it have been queued, and is not recorded itself: it may queue
// kernels, and start what waits for those before.
void repeat_on_host(const std::function<void()>& f);
void repeat_between_kernels(const std::function<void()>& f);

// What a recorder does with them while it records.
class HostParts {
 public:
  virtual ~HostParts() = default;
  virtual void on_host(const std::function<void()>& f) = 0;
  virtual void between_kernels(const std::function<void()>& f) = 0;
};

class HostPartsScope {
 public:
  explicit HostPartsScope(HostParts* parts);  // null: none are kept
  ~HostPartsScope();
  HostPartsScope(const HostPartsScope&) = delete;

 private:
  HostParts* previous_;
};

}  // namespace lockstep
