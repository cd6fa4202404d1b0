// The caller's side: how it starts and ends, and what it hands to the communication thread. Read
// next: host_thread.cpp, which does it.
#include "dist/host_communicator.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <numeric>

#include "dist/host_operation.h"
#include "dist/launch.h"

namespace lockstep {

namespace {

using Views = std::span<const ByteView>;
using Outs = std::span<const std::span<std::byte>>;

constexpr size_t kBulletinBytes = 16384;

}  // namespace

HostCommunicator::HostCommunicator(std::unique_ptr<Transport> transport,
                                   const TransportOptions& options)
    : transport_(std::move(transport)),
      options_(options),
      watchdog_(fmt::format("{} on host {}", launched_rank(), host_name())) {
  std::promise<void> ready;
  std::future<void> opened = ready.get_future();
  thread_ = std::thread([this, ready = std::move(ready)]() mutable {
    try {
      const Moment start{Phase::start, 0};
      watchdog_.busy("the start of MPI", limit(start), start.limit_key());
      topology_ = transport_->open();
      watchdog_.rename(topology_.describe(rank()));
      for (int host = 0; host < topology_.hosts; ++host)
        ranks_of_.push_back(topology_.ranks_on(host));
      hosts_are_blocks_ = topology_.hosts_are_blocks();
      const std::vector<size_t> board(topology_.size, sizeof(Board));
      for (auto& memory : transport_->share(board, "the board"))
        boards_.push_back(std::reinterpret_pointer_cast<Board>(memory));
      const std::vector<size_t> parts(topology_.size, kBulletinBytes);
      bulletin_ = create_window("bulletin", parts, Layout::own_part);
    } catch (...) {
      watchdog_.idle();
      return ready.set_exception(std::current_exception());
    }
    watchdog_.idle();
    ready.set_value();
    run();
  });
  try {
    opened.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

HostCommunicator::~HostCommunicator() {
  if (!thread_.joinable()) return;
  abort(Exit::restart, "left before the end of the run");
}

void HostCommunicator::finish() {
  barrier();
  call([this] {
    watchdog_.busy("the end of MPI", limit(moment_), moment_.limit_key());
    transport_->close();
  });
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ring(rank());
  thread_.join();
}

void HostCommunicator::abort(Exit code, const std::string& message) {
  if (!thread_.joinable()) return;
  start(Kind::call, nullptr, [code, message](Views, Outs) { throw Error(code, message); });
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  thread_.join();
}

// Every operation is appended to a list and the thread is woken.
Work HostCommunicator::start(Kind kind, const WindowPtr& window, Combine reader,
                             std::vector<size_t> used, int root) {
  for (size_t p = 0; p < used.size(); ++p) {
    if (used[p] != told_by_part) continue;
    std::memcpy(&used[p], window->part(p).data(), sizeof used[p]);
    check_told(*window, p, used[p]);
  }
  Operation operation{kind, std::static_pointer_cast<HostWindow>(window), std::move(reader),
                      std::move(used), root};
  for (size_t bytes : operation.used) operation.traffic.used += bytes;
  Work work(operation.state);
  {
    std::lock_guard lock(mutex_);
    if (broken_) {
      operation.state->fail(broken_);
      return work;
    }
    operation.sequence = ++started_;
    operation.moment = moment_;
    const bool sums = kind == Kind::combine || kind == Kind::exchange;
    operation.folds = sums && hosts_are_blocks_ && window->fold();
    if (operation.window) operation.number = operation.window->started + 1;
    if (kind == Kind::reclaim && released(operation)) return Work();
    if (kind < Kind::reclaim) ++operation.window->started;
    submitted_.push_back(std::move(operation));
  }
  ring(rank());
  return work;
}

// Nearly always true when backward asks again a step later: no need to wake the thread then.
bool HostCommunicator::released(const Operation& operation) const {
  const HostWindow& window = *operation.window;
  return window.finished == window.started && peers_behind(operation).empty();
}

Work HostCommunicator::exchange(const WindowPtr& window, Reader reader, std::vector<size_t> used) {
  check_exchange(*window, reader, used);
  return start(
      Kind::exchange, window, [reader = std::move(reader)](Views views, Outs) { reader(views); },
      std::move(used));
}

Work HostCommunicator::gather(const WindowPtr& window, Reader reader, size_t used) {
  check_gather(*window, reader, used, rank());
  std::vector<size_t> used_parts;
  if (used != SIZE_MAX) used_parts.resize(size());
  if (used != SIZE_MAX) used_parts[rank()] = used;
  return start(
      Kind::gather, window,
      [reader = std::move(reader), w = window.get()](Views views, Outs) {
        if (reader) return reader(views);
        for (size_t r = 0; r < views.size(); ++r) copy(views[r], w->part(r));
      },
      std::move(used_parts));
}

Work HostCommunicator::broadcast(const WindowPtr& window, int root, Reader reader) {
  check(root >= 0 && root < size(), "[broadcast] root {} of {} ranks", root, size());
  check_holds_all(*window);
  return start(
      Kind::broadcast, window,
      [reader = std::move(reader), w = window.get(), root](Views views, Outs) {
        if (reader) return reader(views);
        copy(views[root], w->mine());
      },
      {}, root);
}

Work HostCommunicator::all_reduce(const WindowPtr& window, Combine combine) {
  check_holds_all(*window);
  start(Kind::combine, window, std::move(combine));  // if it fails, the second does as well
  return start(Kind::collect, window, [](Views, Outs) {});
}

Work HostCommunicator::reclaim(const WindowPtr& window) {
  return start(Kind::reclaim, window, {});
}

void HostCommunicator::call(const std::function<void()>& function) {
  start(Kind::call, nullptr, [&](Views, Outs) { function(); }).wait();
}

Moment HostCommunicator::enter(Moment now) {
  std::lock_guard lock(mutex_);
  return std::exchange(moment_, now);
}

std::chrono::nanoseconds HostCommunicator::limit(const Moment& moment) const {
  const double limits[] = {options_.start_timeout_s, options_.timeout_s,
                           options_.checkpoint_timeout_s, options_.eval_timeout_s};
  return std::chrono::nanoseconds(
      static_cast<int64_t>(limits[static_cast<int>(moment.phase)] * 1e9));
}

WindowPtr HostCommunicator::window(const std::string& name, std::span<const size_t> part_bytes,
                                   Layout layout) {
  check(static_cast<int>(part_bytes.size()) == size(), "[window] '{}' has {} parts for {} ranks",
        name, part_bytes.size(), size());
  const ByteView mine = std::as_bytes(part_bytes);
  const auto all = all_gather_bytes(mine);
  for (int r = 0; r < size(); ++r) {
    if (!std::equal(mine.begin(), mine.end(), all[r].begin(), all[r].end()))
      fail(Exit::internal, "[window] '{}' has other part sizes on {} than on {}", name,
           topology_.describe(r), topology_.describe(rank()));
  }
  WindowPtr window;
  call([&] { window = create_window(name, part_bytes, layout); });
  return window;
}

std::shared_ptr<HostCommunicator::HostWindow> HostCommunicator::create_window(
    const std::string& name, std::span<const size_t> part_bytes, Layout layout) {
  const size_t whole = std::accumulate(part_bytes.begin(), part_bytes.end(), size_t{0});
  std::vector<size_t> bytes;
  for (size_t part : part_bytes)
    bytes.push_back(layout == Layout::whole
                        ? kHeaderBytes + whole
                        : HostWindow::own_part_bytes(part) + size() * sizeof(RelayPlace));
  auto window =
      std::make_shared<HostWindow>(name, part_bytes, layout, topology_.rank, windows_++,
                                   transport_->share(bytes, fmt::format("window '{}'", name)));
  receivers_.push_back(window);
  return window;
}

size_t HostCommunicator::arrival_bytes() {
  size_t sum = 0;
  call([&] {
    sum = relays_.bytes();
    for (const auto& weak : receivers_)
      if (const auto window = weak.lock())
        for (const auto& buffer : window->received) sum += buffer.capacity();
  });
  return sum;
}

std::vector<std::vector<std::byte>> HostCommunicator::all_gather_bytes(ByteView mine) {
  constexpr size_t kPayload = kBulletinBytes - sizeof(uint64_t);
  std::vector<std::vector<std::byte>> all(size());
  size_t longest = mine.size();
  for (size_t at = 0; at == 0 || at < longest; at += kPayload) {
    reclaim(bulletin_).wait();
    const uint64_t total = mine.size();
    const size_t now = at < total ? std::min<size_t>(kPayload, total - at) : 0;
    std::byte* slot = bulletin_->mine().data();
    std::memcpy(slot, &total, sizeof total);
    if (now > 0) std::memcpy(slot + sizeof total, mine.data() + at, now);
    const auto read = [&](std::span<const ByteView> views) {
      for (int r = 0; r < size(); ++r) {
        uint64_t theirs;
        std::memcpy(&theirs, views[r].data(), sizeof theirs);
        longest = std::max<size_t>(longest, theirs);
        if (at >= theirs) continue;
        const auto payload = views[r].subspan(sizeof theirs, std::min(kPayload, theirs - at));
        all[r].insert(all[r].end(), payload.begin(), payload.end());
      }
    };
    gather(bulletin_, read, sizeof total + now).wait();
  }
  return all;
}

}  // namespace lockstep
