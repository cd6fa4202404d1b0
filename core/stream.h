// Streams and events: the order in which a device works. A stream is a queue; different streams run
// at the same time unless one waits for an event of another. On the CPU there is nothing to order:
// a kernel has run when its call returns. Read next: device.h.
#pragma once

#include <memory>

namespace lockstep {

// A point in a stream: reached when all that was queued before it has run.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool reached() const = 0;
  virtual void wait() const = 0;  // of the host
};
using EventPtr = std::shared_ptr<const Event>;  // null: reached long ago

class Stream {
 public:
  virtual ~Stream() = default;
  // The point behind what has been queued so far.
  virtual EventPtr record() = 0;
  // What is queued from now on runs after `event`. The host goes on.
  virtual void wait(const EventPtr& event) = 0;

  void synchronize() {
    if (const EventPtr now = record()) now->wait();
  }
};

// The CPU's: the thread itself is the queue.
class HostStream : public Stream {
 public:
  EventPtr record() override { return nullptr; }
  void wait(const EventPtr& event) override {
    if (event) event->wait();
  }
};

}  // namespace lockstep
