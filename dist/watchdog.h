// The last resort against a thread that hangs where no error can be thrown, such as inside MPI_Init
// or MPI_Finalize: the process says so and ends with Exit::restart. Ordinary waits have limits of
// their own (host_thread.cpp), whose messages say more. Read next: launch.h.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace lockstep {

class Watchdog {
 public:
  explicit Watchdog(std::string who);  // in messages, such as "rank 2 on host a"
  ~Watchdog();

  void rename(std::string who);
  // The watched thread says what it does now and how long that may take (`key`: the setting that
  // allows it), or that it does nothing that could hang. Each call starts the time anew.
  void busy(const char* what, std::chrono::nanoseconds limit, const char* key);
  void idle();

 private:
  void watch();
  [[noreturn]] void end_process() const;

  std::mutex mutex_;  // guards all but the thread
  std::condition_variable changed_;
  std::string who_;
  const char* what_ = nullptr;  // null: idle
  const char* key_ = nullptr;
  std::chrono::nanoseconds limit_{};
  std::chrono::steady_clock::time_point since_{};
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace lockstep
