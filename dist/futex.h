// Sleeping on a 32-bit word that may lie in memory shared between processes, with a time limit:
// what std::atomic::wait offers neither of. Read next: watchdog.h.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>

namespace lockstep {

using FutexWord = std::atomic<uint32_t>;
static_assert(sizeof(FutexWord) == 4 && FutexWord::is_always_lock_free);

// Returns at once if the word is not `seen`; else after a wake, the limit, or for no reason at all.
inline void futex_wait(FutexWord& word, uint32_t seen, std::chrono::nanoseconds limit) {
  const timespec time{limit.count() / 1'000'000'000, limit.count() % 1'000'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
}

inline void futex_wake_all(FutexWord& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace lockstep
