// A thread that looks at a clock. Read next: launch.h.
#include "dist/watchdog.h"

#include <unistd.h>

#include "core/error.h"

namespace lockstep {

namespace {

// How late it may notice. Looking at a clock so often costs nothing measurable.
constexpr std::chrono::milliseconds kPause{100};

}  // namespace

Watchdog::Watchdog(std::string who) : who_(std::move(who)), thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::rename(std::string who) {
  std::lock_guard lock(mutex_);
  who_ = std::move(who);
}

void Watchdog::busy(const char* what, std::chrono::nanoseconds limit, const char* key) {
  std::lock_guard lock(mutex_);
  what_ = what;
  key_ = key;
  limit_ = limit;
  since_ = std::chrono::steady_clock::now();
}

void Watchdog::idle() {
  std::lock_guard lock(mutex_);
  what_ = nullptr;
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (what_ && std::chrono::steady_clock::now() - since_ > limit_) end_process();
    changed_.wait_for(lock, kPause);
  }
}

// Destructors and exit handlers would wait for the very thread that hangs.
void Watchdog::end_process() const {
  const std::string message =
      fmt::format("[watchdog] {}: {} has not returned for {:.1f} s, longer than {} allows\n", who_,
                  what_, std::chrono::duration<double>(limit_).count(), key_);
  [[maybe_unused]] const auto written = write(STDERR_FILENO, message.data(), message.size());
  _exit(static_cast<int>(Exit::restart));
}

}  // namespace lockstep
