// The communication thread: it takes what was started, advances every operation as far as it goes,
// and sleeps. What an operation looks at, sends and receives is host_messages.cpp's matter. Read
// run() first. Read next: host_messages.cpp.
#include <algorithm>

#include "dist/host_operation.h"

namespace lockstep {

namespace {

using std::chrono::steady_clock;

// While messages to other hosts are under way the thread looks after them again and again, and each
// look takes about 60 us of a core that backward could use. So it looks less often the longer
// nothing has come or gone: being late by this share of the time a message takes is cheaper than
// the looks, and the kernel's buffers keep the link busy for milliseconds.
constexpr int kLookShare = 16;
constexpr std::chrono::microseconds kShortestLook{100}, kLongestLook{1000};
// Without messages only a bell matters; the pause bounds how late a time-out is noticed.
constexpr std::chrono::milliseconds kBellPause{50};
// An operation that waits too long says more than the watchdog, so it speaks first.
constexpr std::chrono::seconds kWatchdogGrace{1};

}  // namespace

void HostCommunicator::run() {
  Board& board = *boards_[rank()];
  for (;;) {
    const uint32_t bell = board.bell.load(std::memory_order_acquire);
    bool stopping;
    {
      std::lock_guard lock(mutex_);
      std::move(submitted_.begin(), submitted_.end(), std::back_inserter(active_));
      submitted_.clear();
      stopping = stopping_;
    }
    bool progress = false;
    if (!active_.empty()) {
      const Moment& moment = active_.front().moment;
      watchdog_.busy("its communication thread", limit(moment) + kWatchdogGrace,
                     moment.limit_key());
    }
    try {
      if (!active_.empty()) check_peers();
      for (auto it = active_.begin(); it != active_.end();) {
        const bool finished = advance(*it);
        progress |= finished;
        it = finished ? active_.erase(it) : std::next(it);
      }
    } catch (...) {
      return break_with(std::current_exception());
    }
    watchdog_.idle();
    if (stopping) return;
    if (!progress) sleep(bell);
  }
}

// True when the operation has finished.
bool HostCommunicator::advance(Operation& operation) {
  if (operation.kind == Kind::call) {
    operation.reader({}, {});
    operation.state->finish({}, {});
    return true;
  }
  HostWindow& window = *operation.window;
  if (window.finished + 1 < operation.number) return false;  // its turn has not come
  if (operation.patience_since == Work::Time{}) operation.patience_since = steady_clock::now();
  if (!operation.begun && !begin(operation)) return false;
  if (operation.kind == Kind::reclaim) {
    operation.state->finish(operation.timing, {});
    return true;
  }
  if (!operation.read) {
    if (!views_ready(operation)) return false;
    read(operation);
  }
  if (!sends_done(operation)) return false;
  window.finished = operation.number;
  operation.timing.finished = steady_clock::now();
  operation.state->finish(operation.timing, operation.traffic);
  return true;
}

// An operation begins when no peer on this host still reads what the previous one published. That
// makes every write a reader is allowed safe, and keeps peers at most one operation apart.
bool HostCommunicator::begin(Operation& operation) {
  if (!peers_behind(operation).empty()) {
    check_patience(operation);
    return false;
  }
  operation.begun = true;
  operation.timing.started = steady_clock::now();
  if (operation.kind == Kind::reclaim) return true;  // this was all it asks
  operation.window->header(rank()).published.store(operation.number, std::memory_order_release);
  ring_peers();
  look_and_post(operation);
  return true;
}

bool HostCommunicator::views_ready(Operation& operation) {
  note_arrival(operation);
  drop_done(operation.receives);
  const bool must_fold = operation.folds && !operation.folded;
  if (must_fold && shown_by_all(operation)) fold_for_others(operation);
  if (!operation.delivered && operation.receives.empty() && shown_by_all(operation))
    deliver(operation);
  const bool done_my_share = operation.delivered && (!operation.folds || operation.folded);
  const bool ready = done_my_share && peers_behind(operation).empty();
  if (!ready) check_patience(operation);
  return ready;
}

// What a peer of my host hands on from another host counts as there.
void HostCommunicator::note_arrival(Operation& operation) {
  if (operation.timing.arrived != Work::Time{} || !shown_by_all(operation) ||
      !std::ranges::all_of(operation.receives, [](auto& m) { return m.transfer->begun(); }))
    return;
  operation.timing.arrived = steady_clock::now();
}

void HostCommunicator::drop_done(std::vector<Message>& messages) {
  if (std::erase_if(messages, [](Message& message) { return message.transfer->done(); }) > 0)
    messages_changed_ = steady_clock::now();
}

bool HostCommunicator::sends_done(Operation& operation) {
  drop_done(operation.sends);
  if (!operation.sends.empty()) check_patience(operation);
  return operation.sends.empty();
}

void HostCommunicator::read(Operation& operation) {
  HostWindow& window = *operation.window;
  if (operation.timing.arrived == Work::Time{}) operation.timing.arrived = steady_clock::now();
  if (operation.kind == Kind::combine) window.first_timing = operation.timing;
  if (operation.kind == Kind::collect) operation.timing = window.first_timing;
  std::vector<std::span<std::byte>> outs;
  if (operation.kind == Kind::combine) outs = window.outs(rank());
  if (operation.folds) {
    fold_part(operation, rank());
    operation.views[my_host()] = window.part(rank());
  }
  if (operation.relays && window.layout() == Layout::own_part) find_relayed(operation);
  operation.reader(operation.views, outs);
  operation.read = true;
  window.header(rank()).consumed.store(operation.number, std::memory_order_release);
  ring_peers();
}

// The ranks an operation waits for. Before it has begun: those of this host that still read what I
// published last. Then: those whose memory or message it needs, be it that a peer should have
// handed it on. At last: those yet to take mine.
std::vector<int> HostCommunicator::peers_behind(const Operation& operation) const {
  const HostWindow& window = *operation.window;
  std::vector<int> behind;
  for (int r = 0; r < topology_.size; ++r) {
    if (operation.read) break;
    if (!window.mapped(r)) {
      if (const int late = relay_behind(operation, r); late >= 0) behind.push_back(late);
      continue;
    }
    const uint64_t consumed = window.header(r).consumed.load(std::memory_order_acquire);
    const uint64_t published = window.header(r).published.load(std::memory_order_acquire);
    const bool still_reads = r != topology_.rank && consumed + 1 < operation.number;
    const bool needed = operation.reads_from(r) || !operation.delivered;
    const bool unpublished = needed && published < operation.number;
    if (operation.begun ? unpublished : still_reads) behind.push_back(r);
  }
  for (const auto& message : operation.read ? operation.sends : operation.receives)
    behind.push_back(message.peer);
  return behind;
}

// Of what a peer is to hand on from rank r of another host: who keeps it back, or -1.
int HostCommunicator::relay_behind(const Operation& operation, int r) const {
  const int by = partner(r, my_host());
  if (!operation.begun || !operation.relays || !operation.reads_from(r) || by == rank()) return -1;
  const Header& relay = operation.window->header(by);
  if (relay.delivered.load(std::memory_order_acquire) >= operation.number) return -1;
  return relay.published.load(std::memory_order_acquire) >= operation.number ? r : by;
}

void HostCommunicator::check_patience(const Operation& operation) const {
  const auto waited = steady_clock::now() - operation.patience_since;
  const auto allowed = limit(operation.moment);
  if (waited < allowed) return;
  static constexpr const char* kNames[] = {
      "exchange", "all_reduce (exchange)", "gather", "all_reduce (gather)", "broadcast", "reclaim",
      "call"};
  std::string who;
  for (int r : peers_behind(operation)) who += (who.empty() ? "" : ", ") + topology_.describe(r);
  fail(Exit::restart,
       "[{}] {} waited {:.1f} s for {} {} ({} {} of window '{}', operation {} of this rank): dead, "
       "stuck, or slower than {} = {:g} allows",
       kNames[static_cast<int>(operation.kind)], topology_.describe(topology_.rank),
       std::chrono::duration<double>(waited).count(), who, operation.moment.describe(),
       kNames[static_cast<int>(operation.kind)], operation.number, operation.window->name(),
       operation.sequence, operation.moment.limit_key(),
       std::chrono::duration<double>(allowed).count());
}

void HostCommunicator::check_peers() {
  for (int r = 0; r < topology_.size; ++r) {
    if (r == topology_.rank || !boards_[r]) continue;
    if (boards_[r]->failed.load(std::memory_order_acquire))
      throw PeerFailure(boards_[r]->failure, topology_.describe(boards_[r]->failure.rank));
  }
  if (topology_.hosts == 1) return;
  if (const auto failure = transport_->announced())
    throw PeerFailure(*failure, topology_.describe(failure->rank));
}

void HostCommunicator::sleep(uint32_t bell_seen) {
  const bool messages = std::any_of(active_.begin(), active_.end(), [](const Operation& operation) {
    return !operation.sends.empty() || !operation.receives.empty();
  });
  std::chrono::nanoseconds pause = std::chrono::hours(1);
  if (!active_.empty()) pause = kBellPause;
  if (messages)
    pause = std::clamp<std::chrono::nanoseconds>(
        (steady_clock::now() - messages_changed_) / kLookShare, kShortestLook, kLongestLook);
  futex_wait(boards_[topology_.rank]->bell, bell_seen, pause);
}

void HostCommunicator::break_with(std::exception_ptr error) {
  Board& board = *boards_[topology_.rank];
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    board.failure = failure_of(topology_.rank, e);
  }
  board.failed.store(1, std::memory_order_release);
  ring_peers();
  if (board.failure.rank == topology_.rank) transport_->announce(board.failure);
  watchdog_.idle();
  std::lock_guard lock(mutex_);
  broken_ = error;
  std::move(submitted_.begin(), submitted_.end(), std::back_inserter(active_));
  submitted_.clear();
  for (Operation& operation : active_) operation.state->fail(error);
  active_.clear();
}

void HostCommunicator::ring_peers() {
  for (int r = 0; r < topology_.size; ++r) {
    if (r != topology_.rank && boards_[r]) ring(r);
  }
}

void HostCommunicator::ring(int r) {
  boards_[r]->bell.fetch_add(1, std::memory_order_release);
  futex_wake_all(boards_[r]->bell);
}

}  // namespace lockstep
