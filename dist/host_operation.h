// What HostCommunicator works with, private to it: the memory of a window as ranks of a host share
// it, and an operation from its start to its end. Read next: host_communicator.cpp.
#pragma once

#include <algorithm>
#include <atomic>

#include "dist/futex.h"
#include "dist/host_communicator.h"
#include "dist/work_state.h"

namespace lockstep {

constexpr size_t kHeaderBytes = 4096;  // keeps the data page-aligned, and counters off its lines

// Counters of one rank on one window, written by that rank alone.
struct Header {
  std::atomic<uint64_t> published;  // operations whose memory the peers may read
  std::atomic<uint64_t> consumed;   // operations whose views this rank has finished reading
  std::atomic<uint64_t> delivered;  // operations of which it has handed on what it received
};
static_assert(sizeof(Header) <= kHeaderBytes && std::atomic<uint64_t>::is_always_lock_free);

// Into memory of the same size, which may be the same memory.
inline void copy(ByteView from, std::span<std::byte> to) {
  if (from.data() != to.data()) std::copy(from.begin(), from.end(), to.begin());
}

// What a rank shows the others of its host, beside its windows.
struct HostCommunicator::Board {
  FutexWord bell;  // rung by peers (and by my own caller) when something may have changed
  std::atomic<uint32_t> failed;
  Failure failure;
};

class HostCommunicator::HostWindow : public Window {
 public:
  HostWindow(std::string name, std::span<const size_t> part_bytes, Layout layout, int me, int id,
             std::vector<std::shared_ptr<std::byte>> memory)
      : Window(std::move(name), part_bytes, layout, me),
        tag(id),
        me_(me),
        memory_(std::move(memory)) {}

  std::span<std::byte> mine() override {
    return {memory_[me_].get() + kHeaderBytes, held_bytes(me_)};
  }
  bool mapped(int r) const { return memory_[r] != nullptr; }
  ByteView of(int r) const { return {memory_[r].get() + kHeaderBytes, held_bytes(r)}; }
  // Part p in the memory of rank r, which holds it.
  ByteView part_of(int r, int p) const {
    return layout() == Layout::own_part ? of(r) : of(r).subspan(part_offset(p), part_bytes(p));
  }
  // Part p in my memory, then in that of the peers of my host.
  std::vector<std::span<std::byte>> outs(int p) {
    return everywhere(part_offset(p), part_bytes(p));
  }
  // The same of any bytes of the whole.
  std::vector<std::span<std::byte>> everywhere(size_t offset, size_t count) {
    std::vector<std::span<std::byte>> places{mine().subspan(offset, count)};
    for (int r = 0; r < static_cast<int>(memory_.size()); ++r) {
      if (r != me_ && mapped(r))
        places.push_back({memory_[r].get() + kHeaderBytes + offset, count});
    }
    return places;
  }
  // Where a part from rank r of another host arrives that has no place in my memory.
  std::span<std::byte> buffer(int r, size_t bytes) {
    received[r].resize(bytes);
    return received[r];
  }
  Header& header(int r) const { return *reinterpret_cast<Header*>(memory_[r].get()); }
  // Where the peer that hands it on has the part of rank `from` of another host, for as long as the
  // operation lasts. Of windows of layout own_part, behind the part.
  RelayPlace& relay_place(int peer, int from) const {
    return reinterpret_cast<RelayPlace*>(memory_[peer].get() +
                                         own_part_bytes(part_bytes(peer)))[from];
  }
  static size_t own_part_bytes(size_t part) { return kHeaderBytes + (part + 63) / 64 * 64; }

  const int tag;
  uint64_t started = 0;                          // operations started here: the caller's own
  std::atomic<uint64_t> finished = 0;            // operations finished here: the thread's
  std::vector<std::vector<std::byte>> received;  // parts from other hosts, by rank
  // Of the all_reduce under way, its exchange.
  Work::Traffic first_half;
  Work::Timing first_timing;

 private:
  size_t held_bytes(int r) const { return layout() == Layout::own_part ? part_bytes(r) : bytes(); }

  const int me_;
  const std::vector<std::shared_ptr<std::byte>> memory_;  // by rank, null on other hosts
};

struct HostCommunicator::Message {
  int peer;
  std::unique_ptr<Transfer> transfer;
};

struct HostCommunicator::Operation {
  Kind kind;
  std::shared_ptr<HostWindow> window;
  Combine reader;
  std::vector<size_t> used;  // bytes of my part p to send; empty: all
  int root;

  uint64_t number = 0;    // on its window, from 1
  uint64_t sequence = 0;  // on this rank, from 1
  Moment moment{};
  std::shared_ptr<Work::State> state = std::make_shared<Work::State>();
  Work::Timing timing{};
  Work::Traffic traffic{};
  Work::Time patience_since{};
  bool folds = false;   // contributions are combined within hosts before they travel
  bool relays = false;  // what comes from other hosts comes once, and is handed on
  bool begun = false;
  bool folded = false;
  bool delivered = false;
  bool read = false;
  std::vector<Message> sends{}, receives{};
  std::vector<std::span<std::byte>> to_deliver{};  // what is received for peers, too: in my memory
  std::vector<ByteView> views{};

  bool reads_from(int r) const { return kind != Kind::broadcast || r == root; }
  size_t used_bytes(int p) const { return used.empty() ? window->part_bytes(p) : used[p]; }
  // Of my part p, what others must see.
  std::span<std::byte> used_of(int p) const { return window->part(p).first(used_bytes(p)); }
};

}  // namespace lockstep
