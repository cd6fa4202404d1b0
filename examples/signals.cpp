// Signal handlers. Read next: trainer.cpp.
#include "examples/signals.h"

#include <atomic>
#include <csignal>

namespace lockstep {

namespace {

std::atomic<int> received{0};
static_assert(std::atomic<int>::is_always_lock_free);

void note(int number) {
  received.store(number);
  // From now on the same signal does what it does by default: an impatient user gets his way.
  if (number != SIGUSR1) std::signal(number, SIG_DFL);
}

}  // namespace

void catch_stop_signals() {
  received.store(0);
  for (int number : {SIGUSR1, SIGTERM, SIGINT, SIGHUP}) {
    struct sigaction action = {};
    sigaction(number, nullptr, &action);
    if (number == SIGHUP && action.sa_handler == SIG_IGN) continue;  // as nohup wants it
    action = {};
    action.sa_handler = note;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, nullptr);
  }
  std::signal(SIGPIPE, SIG_IGN);  // who reads along may leave; the log file stays
}

int stop_signal() {
  return received.load();
}

const char* signal_name(int number) {
  switch (number) {
    case SIGUSR1:
      return "USR1";
    case SIGTERM:
      return "TERM";
    case SIGINT:
      return "INT";
    case SIGHUP:
      return "HUP";
    default:
      return "none";
  }
}

}  // namespace lockstep
