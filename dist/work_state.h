// What a Work refers to: set once by the communication thread, waited for by any other.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>

#include "core/stream.h"
#include "dist/communicator.h"

namespace lockstep {

class Work::State {
 public:
  // On a device the result is there when `event` is reached.
  void finish(const Timing& timing, const Traffic& traffic, EventPtr event = nullptr) {
    {
      std::lock_guard lock(mutex_);
      timing_ = timing;
      traffic_ = traffic;
      event_ = std::move(event);
      done_ = true;
    }
    changed_.notify_all();
  }
  void fail(std::exception_ptr error) {
    {
      std::lock_guard lock(mutex_);
      error_ = std::move(error);
      done_ = true;
    }
    changed_.notify_all();
  }
  bool done() const {
    std::lock_guard lock(mutex_);
    return done_;
  }
  EventPtr wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
    if (error_) std::rethrow_exception(error_);
    return event_;
  }
  Timing timing() const {
    std::lock_guard lock(mutex_);
    return timing_;
  }
  Traffic traffic() const {
    std::lock_guard lock(mutex_);
    return traffic_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  Timing timing_;
  Traffic traffic_;
  EventPtr event_;
  std::exception_ptr error_;
};

}  // namespace lockstep
