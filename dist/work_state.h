// What a Work refers to: set once by the communication thread, waited for by any other.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>

#include "core/stream.h"
#include "dist/communicator.h"

namespace lockstep {

// When a device's stream began and ended with an operation. Not part of Work::State, which owns an
// event: the driver's thread may be the last to hold this, and must not touch one.
class StreamTimes {
 public:
  void begin() { note(began_); }
  void end() { note(ended_); }
  bool complete() const {
    std::lock_guard lock(mutex_);
    return ended_ != Work::Time{};
  }
  // The host only queued: what it noted is too early.
  void correct(Work::Timing& timing) const {
    std::lock_guard lock(mutex_);
    timing.arrived = std::max(timing.arrived, began_);
    timing.finished = std::max(timing.finished, ended_);
  }

 private:
  void note(Work::Time& time) {
    std::lock_guard lock(mutex_);
    time = std::chrono::steady_clock::now();
  }

  mutable std::mutex mutex_;
  Work::Time began_{}, ended_{};
};

class Work::State {
 public:
  // On a device the result is there when `event` is reached, and `times` are complete then.
  void finish(const Timing& timing, const Traffic& traffic, EventPtr event = nullptr,
              std::shared_ptr<const StreamTimes> times = nullptr) {
    {
      std::lock_guard lock(mutex_);
      timing_ = timing;
      traffic_ = traffic;
      event_ = std::move(event);
      times_ = std::move(times);
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
    Timing timing = timing_;
    if (times_) times_->correct(timing);
    return timing;
  }
  bool timed() const {
    std::lock_guard lock(mutex_);
    return done_ && (!times_ || times_->complete());
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
  std::shared_ptr<const StreamTimes> times_;
  std::exception_ptr error_;
};

}  // namespace lockstep
