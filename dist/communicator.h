// What a rank can ask of the other ranks: asynchronous operations on symmetric windows of bytes. It
// knows neither tensors nor gradients nor codecs: the caller's reader does the arithmetic. The
// semantics stand in prose in README.md. Read next: config.h.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "core/error.h"

namespace lockstep {

using ByteView = std::span<const std::byte>;

// Where the ranks live. A host is a set of ranks that can map each other's memory.
struct Topology {
  int rank = 0;
  int size = 1;
  std::vector<std::string> host_name;  // (size), for messages; may repeat
  std::vector<int> host_of;            // (size), 0 .. hosts-1 in order of the lowest rank
  int hosts = 1;
  int local_rank = 0;  // position among the ranks of my host
  int local_size = 1;

  bool same_host(int other) const { return host_of[other] == host_of[rank]; }
  std::string describe(int r) const;  // "rank 2 on host a"
  std::vector<int> ranks_on(int host) const;
  // Whether hosts hold ranks as the subtrees of a balanced tree do (Window::fold_with), and summing
  // within them saves anything.
  bool hosts_are_blocks() const;
};

// The handle of a started operation. Copies refer to the same operation; a default one is done.
class Work {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Timing {
    Time started;   // I published my part
    Time arrived;   // the last peer's part was there, or began to come from another host: before it
                    // is waiting, after it communication. Of an all_reduce: in its exchange. On a
                    // device not before its stream came to the operation
    Time finished;  // the reader has run and my sends are complete
  };
  // Bytes of mine that the operation showed to other ranks. Those that cross to other hosts count
  // among both; peers of my host read theirs in place.
  struct Traffic {
    size_t to_ranks = 0;
    size_t to_hosts = 0;
    size_t used = 0;  // of all parts of mine that it was started with, my own included
  };
  class State;

  Work() = default;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  bool done() const;
  // Sleeps until done; throws what the operation or its reader failed with. On a device, done means
  // that all of it is queued: what the calling thread queues from now on runs after it.
  void wait() const;
  Timing timing() const;    // of an operation that is done; on a device final when it is timed()
  bool timed() const;       // done, and a device's stream has run it
  Traffic traffic() const;  // likewise; that of an all_reduce counts both ways

 private:
  std::shared_ptr<State> state_;
};

// Called once per operation on the communication thread (never the caller's), when every view is
// there. views[r] is what rank r contributes: r's own memory where r shares my host, else a buffer
// that received it; views[me] is my own memory. They end with the call. A reader may start an
// operation, but wait for none.
using Reader = std::function<void(std::span<const ByteView> views)>;

// The same, for an operation with a result: leaves the bytes of my part of it in every one of
// `outs`. outs[0] is my own part `rank()`; the others, if any, are the same part in the memory of
// peers of my host, where writing it at once saves them a copy. outs may be the views themselves.
using Combine = std::function<void(std::span<const ByteView> views,
                                   std::span<const std::span<std::byte>> outs)>;

// What a rank holds of a window. whole: all parts, one after the other without gaps. own_part: part
// `rank()` alone, for what stays sharded; only gather works on it, with a reader that puts the
// parts where the caller wants them, and the whole stands nowhere.
enum class Layout { whole, own_part };

// In place of a number of used bytes: the part tells it, as a uint64 at its start. For whoever has
// not seen it: on a device, kernels may have written it.
constexpr size_t told_by_part = SIZE_MAX - 1;

// Symmetric memory in as many parts as there are ranks: part p has the same number of bytes on
// every rank that holds it (zero is allowed).
class Window {
 public:
  Window(std::string name, std::span<const size_t> part_bytes, Layout layout, int rank);
  virtual ~Window() = default;
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  const std::string& name() const { return name_; }
  Layout layout() const { return layout_; }
  int parts() const { return static_cast<int>(offsets_.size()) - 1; }
  size_t bytes() const { return offsets_.back(); }  // of all parts
  size_t part_bytes(int p) const { return offsets_[p + 1] - offsets_[p]; }
  size_t part_offset(int p) const { return offsets_[p]; }

  // Says that contributions to a part may be combined within hosts first, by `fold`, before they
  // travel: exchange and all_reduce then give one view per host, in rank order, where the ranks of
  // every host are a block of 2^k in a row (the last may be short), aligned as the subtrees of a
  // balanced tree are; elsewhere one per rank as ever. `fold` writes over what this rank
  // contributed, and sees no more of a part than an exchange says is used: the same then on all
  // ranks. All ranks say the same, before the first operation.
  void fold_with(Combine fold) { fold_ = std::move(fold); }
  const Combine& fold() const { return fold_; }

  // Says that all that is ever done with contributions to a part is to add them up as floats. Then
  // a device's transport that was told to sum (dist.nccl_reduce) does so on the way, in an order of
  // its own: exchange and all_reduce give one view, the sum, which stands in my own part. All ranks
  // say the same, before the first operation.
  void let_transport_sum() { transport_may_sum_ = true; }
  bool transport_may_sum() const { return transport_may_sum_; }

  // My memory: all of it (of layout own_part, my part), or part p, which must be in it.
  virtual std::span<std::byte> mine() = 0;
  std::span<std::byte> part(int p);

 private:
  std::string name_;
  Layout layout_;
  int rank_;
  std::vector<size_t> offsets_;  // (size + 1)
  Combine fold_;                 // null: only the readers combine
  bool transport_may_sum_ = false;
};
using WindowPtr = std::shared_ptr<Window>;

// What the ranks are doing together: it decides how long one waits for another (dist/config.h), and
// messages name it.
enum class Phase { start, step, checkpoint, evaluation };
struct Moment {
  Phase phase = Phase::step;
  int64_t step = 0;  // the one that is computed, or was last

  std::string describe() const;   // "in step 12"
  const char* limit_key() const;  // the setting that limits waits: "dist.timeout_s"
};

// What no communicator can start: Exit::internal. The last is for all but exchange and gather.
void check_exchange(const Window& window, const Reader& reader, std::span<const size_t> used);
void check_gather(const Window& window, const Reader& reader, size_t used, int rank);
void check_holds_all(const Window& window);
// What part p tells of its used bytes.
void check_told(const Window& window, size_t p, size_t used);

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual const Topology& topology() const = 0;
  virtual std::string backend() const = 0;
  int rank() const { return topology().rank; }
  int size() const { return topology().size; }

  // From now on this rank is there; returns where it was. At first it is in a step numbered 0.
  virtual Moment enter(Moment now) = 0;

  // Collective and blocking: all ranks call it in the same order with the same sizes. Zeroed
  // memory.
  virtual WindowPtr window(const std::string& name, std::span<const size_t> part_bytes,
                           Layout layout = Layout::whole) = 0;

  // Operations. All ranks start the same ones in the same order on one window; different windows
  // are independent. Each publishes my memory as it is when the operation's turn has come.
  //
  // - exchange: views[r] is part `rank()` of r's window (but see fold_with and let_transport_sum).
  //   The reader may write my part `rank()`.
  // - gather: views[r] is part r of r's window. The reader may write the other parts.
  // - broadcast: views[root] is all of root's window, the rest is empty. Others may write all.
  // - all_reduce: exchange, then gather of what `combine` made of my part.
  //
  // Without a reader, gather and broadcast leave the whole result in mine(), as all_reduce does;
  // with one, the parts of other ranks in mine() are unspecified unless the reader writes them.
  //
  // `used` says how many bytes, from its start, of each part p (of my part) hold anything: only
  // those go to other hosts. They may differ between ranks (but see fold_with), and nobody needs to
  // know the others': views have the length of the part, and what lies beyond the used bytes is
  // unspecified. All is used unless said otherwise; told_by_part says that the parts tell it, on
  // all ranks.
  virtual Work exchange(const WindowPtr& window, Reader reader, std::vector<size_t> used = {}) = 0;
  virtual Work gather(const WindowPtr& window, Reader reader = {}, size_t used = SIZE_MAX) = 0;
  virtual Work broadcast(const WindowPtr& window, int root, Reader reader = {}) = 0;
  virtual Work all_reduce(const WindowPtr& window, Combine combine) = 0;

  // Done when no peer reads my memory any more: then, and only then, the caller may write it again.
  virtual Work reclaim(const WindowPtr& window) = 0;

  // Takes now, not in the middle of a step, what memory it needs beside the windows to gather all
  // of these at once. The same serves any others whose parts have the same sizes.
  virtual void prepare_to_gather(std::span<const WindowPtr>) {}

  // Small and blocking, for agreeing on things: every rank's bytes (sizes may differ), by rank.
  virtual std::vector<std::vector<std::byte>> all_gather_bytes(ByteView mine) = 0;
  void barrier() { all_gather_bytes({}); }

  // Memory of this rank beside its windows, by now, in which parts from other hosts arrive; with
  // windows on a device, memory of the device, in which parts of all others do.
  virtual size_t arrival_bytes() { return 0; }

  // Runs `function` on the communication thread, the only one that may call MPI, and waits for it.
  virtual void call(const std::function<void()>& function) = 0;
};

// Enters a phase and, at its end, whatever was before.
class PhaseScope {
 public:
  PhaseScope(Communicator& communicator, Moment now)
      : communicator_(communicator), before_(communicator.enter(now)) {}
  ~PhaseScope() { communicator_.enter(before_); }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  Communicator& communicator_;
  const Moment before_;
};

// Part sizes in bytes for `count` elements over `ranks`: as even as whole multiples of `grain`
// allow.
std::vector<size_t> even_parts(size_t count, size_t element_bytes, int ranks, size_t grain = 1);

// Sums floats over ranks in the order of Backend::tree_sum: a Combine, ...
void sum_floats(std::span<const ByteView> views, std::span<const std::span<std::byte>> outs);
// ... and with it my part of the sum into part(rank()), or the whole sum into mine().
Work reduce_scatter_floats(Communicator& communicator, const WindowPtr& window);
Work all_reduce_floats(Communicator& communicator, const WindowPtr& window);

// Collective and blocking, for a few numbers: every rank's (how many may differ), by rank; ...
template <class T>
std::vector<std::vector<T>> gather_values(Communicator& communicator, const std::vector<T>& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<std::vector<T>> all;
  for (const auto& bytes : communicator.all_gather_bytes(std::as_bytes(std::span(mine)))) {
    all.emplace_back(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(all.back().data(), bytes.data(), bytes.size());
  }
  return all;
}
// ... and of one of each rank the sum, or the largest.
int64_t sum_over_ranks(Communicator& communicator, int64_t mine);
int64_t max_over_ranks(Communicator& communicator, int64_t mine);

}  // namespace lockstep
