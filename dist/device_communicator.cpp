// Read next: arrivals.h.
#include "dist/device_communicator.h"

#include <cstdlib>
#include <numeric>

#include "dist/arrivals.h"
#include "dist/work_state.h"

namespace lockstep {

namespace {

using Clock = std::chrono::steady_clock;
using Report = DeviceTransport::Report;

// Between looks at what is under way on the device, and at an event that is waited for.
constexpr std::chrono::milliseconds kPause{20};
constexpr std::chrono::microseconds kShortPause{50};

// Of one operation in two parts.
Report after(const Report& first, const Report& second, Work::Time arrived) {
  return {arrived,
          {.to_ranks = first.traffic.to_ranks + second.traffic.to_ranks,
           .to_hosts = first.traffic.to_hosts + second.traffic.to_hosts,
           .used = second.traffic.used}};
}

}  // namespace

// Of the host, where the device writes them: whole pages, because pages are what is pinned.
class DeviceCommunicator::PinnedNumbers {
 public:
  PinnedNumbers(Device& device, size_t count)
      : bytes_((count * sizeof(uint64_t) + page - 1) / page * page),
        memory_(static_cast<uint64_t*>(std::aligned_alloc(page, bytes_))),
        pin_(device.pin({reinterpret_cast<std::byte*>(memory_.get()), bytes_})) {}
  uint64_t* at(size_t i) const { return memory_.get() + i; }

 private:
  static constexpr size_t page = 4096;
  struct Free {
    void operator()(uint64_t* p) const { std::free(p); }
  };
  const size_t bytes_;
  const std::unique_ptr<uint64_t[], Free> memory_;
  const std::shared_ptr<void> pin_;
};

struct DeviceCommunicator::Operation {
  std::shared_ptr<DeviceWindow> window;
  Body body;
  EventPtr ready;  // what the caller had queued
  std::shared_ptr<Work::State> state = std::make_shared<Work::State>();
};

DeviceCommunicator::DeviceCommunicator(Communicator& host, Device& device, Lane& lane,
                                       std::unique_ptr<DeviceTransport> transport)
    : host_(host),
      device_(device),
      lane_(lane),
      transport_(std::move(transport)),
      told_(std::make_unique<PinnedNumbers>(device, 2 * static_cast<size_t>(host.size()))),
      allocator_(lane.memory()),
      thread_([this] { run(); }) {}

DeviceCommunicator::~DeviceCommunicator() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

// ---- the caller's side

Moment DeviceCommunicator::enter(Moment now) {
  {
    std::lock_guard lock(mutex_);
    moment_ = now;
  }
  return host_.enter(now);
}

WindowPtr DeviceCommunicator::window(const std::string& name, std::span<const size_t> part_bytes,
                                     Layout layout) {
  const auto companion = transport_->companion(name, part_bytes, layout);
  try {
    return std::make_shared<DeviceWindow>(name, part_bytes, layout, rank(), device_.memory(),
                                          companion);
  } catch (const Error& e) {  // what the allocator would say, had it been asked
    throw Error(e.code(), fmt::format("{} (asked for window '{}'; in use: {})", e.what(), name,
                                      to_string(Allocator::current().stats())));
  }
}

Work DeviceCommunicator::exchange(const WindowPtr& window, Reader reader,
                                  std::vector<size_t> used) {
  check_exchange(*window, reader, used);
  auto w = std::static_pointer_cast<DeviceWindow>(window);
  return start(window, [this, w, reader = std::move(reader), used = std::move(used)] {
    return exchange_parts(*w, used, reader);
  });
}

Work DeviceCommunicator::gather(const WindowPtr& window, Reader reader, size_t used) {
  check_gather(*window, reader, used, rank());
  auto w = std::static_pointer_cast<DeviceWindow>(window);
  return start(window, [this, w, reader = std::move(reader), used] {
    return gather_parts(*w, used, reader);
  });
}

Work DeviceCommunicator::broadcast(const WindowPtr& window, int root, Reader reader) {
  check_holds_all(*window);
  auto w = std::static_pointer_cast<DeviceWindow>(window);
  return start(window, [this, w, root, reader = std::move(reader)] {
    const Report report = transport_->broadcast(*w, root);
    std::vector<ByteView> views(size());
    views[root] = w->mine();
    if (reader) reader(views);
    return report;
  });
}

Work DeviceCommunicator::all_reduce(const WindowPtr& window, Combine combine) {
  check_holds_all(*window);
  auto w = std::static_pointer_cast<DeviceWindow>(window);
  return start(window, [this, w, combine = std::move(combine)] {
    if (DeviceSums* sums = sums_of(*w)) {
      const Report report = sums->all_reduce(*w);
      const std::span<std::byte> sum = w->part(rank());
      const ByteView view = sum;
      combine({&view, 1}, {&sum, 1});
      return report;
    }
    const Reader reader = [&](std::span<const ByteView> views) {
      const std::span<std::byte> out = w->part(rank());
      combine(views, {&out, 1});
    };
    const Report there = exchange_parts(*w, {}, reader);
    return after(there, gather_parts(*w, SIZE_MAX, {}), there.arrived);
  });
}

// Peers read copies of my memory, and the copies are made by my own operations.
Work DeviceCommunicator::reclaim(const WindowPtr& window) {
  std::lock_guard lock(mutex_);
  return Work(static_cast<DeviceWindow&>(*window).last);
}

// What a reader starts comes next, before what the computing thread may have started meanwhile:
// when that was differs between ranks.
Work DeviceCommunicator::start(const WindowPtr& window, Body body) {
  Operation operation{std::static_pointer_cast<DeviceWindow>(window), std::move(body),
                      lockstep::backend().stream().record()};
  Work work(operation.state);
  {
    std::lock_guard lock(mutex_);
    if (broken_) {
      operation.state->fail(broken_);
      return work;
    }
    operation.window->last = operation.state;
    const bool follows = std::this_thread::get_id() == thread_.get_id();
    const auto at =
        follows ? submitted_.begin() + static_cast<std::ptrdiff_t>(followers_++) : submitted_.end();
    submitted_.insert(at, std::move(operation));
  }
  changed_.notify_all();
  return work;
}

// ---- the communication thread

void DeviceCommunicator::run() {
  const BackendScope kernels(lane_.backend());
  const AllocatorScope memory(allocator_);
  const CategoryScope category(Category::buffers);
  for (;;) {
    std::unique_lock lock(mutex_);
    const auto wanted = [this] { return stopping_ || !submitted_.empty(); };
    if (transport_->busy())
      changed_.wait_for(lock, kPause, wanted);
    else
      changed_.wait(lock, wanted);
    if (stopping_) break;
    if (submitted_.empty()) {
      lock.unlock();
      watch();
      continue;
    }
    Operation operation = std::move(submitted_.front());
    submitted_.pop_front();
    followers_ = 0;
    lock.unlock();
    try {
      perform(operation);
    } catch (...) {
      operation.state->fail(std::current_exception());
      break_with(std::current_exception());
    }
  }
  break_with(std::make_exception_ptr(
      Error(Exit::internal, "[dist] the communicator ended before the operation")));
}

void DeviceCommunicator::perform(Operation& operation) {
  device_.use();
  Work::Timing timing{.started = Clock::now(), .arrived = {}, .finished = {}};
  Stream& stream = lane_.backend().stream();
  stream.wait(operation.ready);
  const auto times = std::make_shared<StreamTimes>();
  lane_.call([times] { times->begin(); });
  const Report report = operation.body();
  lane_.call([times] { times->end(); });
  timing.arrived = report.arrived;
  timing.finished = Clock::now();
  operation.state->finish(timing, report.traffic, stream.record(), times);
}

// What is queued on the device waits for peers without an end; a peer that failed has told the
// host.
void DeviceCommunicator::watch() {
  Moment now;
  {
    std::lock_guard lock(mutex_);
    now = moment_;
  }
  try {
    device_.use();
    transport_->watch(now);
    host_.call([] {});
  } catch (...) {
    break_with(std::current_exception());
  }
}

// Everything that was started fails; the other ranks hear of it from the host's communicator.
void DeviceCommunicator::break_with(const std::exception_ptr& error) {
  std::deque<Operation> left;
  bool news = false;
  {
    std::lock_guard lock(mutex_);
    news = !broken_ && !stopping_;
    if (!broken_) broken_ = error;
    left.swap(submitted_);
  }
  for (const Operation& operation : left) operation.state->fail(error);
  if (!news) return;
  transport_->abort();
  try {
    host_.call([&] { std::rethrow_exception(error); });
  } catch (...) {  // that is how it ends
  }
}

DeviceSums* DeviceCommunicator::sums_of(const DeviceWindow& window) {
  return window.transport_may_sum() ? transport_->sums() : nullptr;
}

Report DeviceCommunicator::exchange_parts(DeviceWindow& window, std::span<const size_t> used,
                                          const Reader& reader) {
  if (DeviceSums* sums = sums_of(window)) {
    const Report report = sums->reduce_scatter(window, used);
    const ByteView sum = window.part(rank());
    reader({&sum, 1});
    return report;
  }
  const bool folds = transport_->folds(window);
  const int mine = folds ? topology().host_of[rank()] : rank();
  std::vector<size_t> bytes(folds ? topology().hosts : size(), window.part_bytes(rank()));
  bytes[mine] = 0;
  Arrivals arrivals(bytes, most_arrived_);
  std::vector<std::span<std::byte>>& places = arrivals.places();
  places[mine] = window.part(rank());
  const bool parts_tell = !used.empty() && used[0] == told_by_part;
  Report report =
      parts_tell ? exchange_told(window, places) : transport_->exchange(window, used, {}, places);
  if (!parts_tell) report.traffic.used = std::accumulate(used.begin(), used.end(), size_t{0});
  reader(std::vector<ByteView>(places.begin(), places.end()));
  return report;
}

Report DeviceCommunicator::gather_parts(DeviceWindow& window, size_t used, const Reader& reader) {
  std::vector<size_t> bytes(size(), 0);
  const bool apart = window.layout() == Layout::own_part;  // there is no place for the others'
  for (int r = 0; apart && r < size(); ++r) bytes[r] = r == rank() ? 0 : window.part_bytes(r);
  Arrivals arrivals(bytes, most_arrived_);
  std::vector<std::span<std::byte>>& places = arrivals.places();
  for (int r = 0; r < size(); ++r)
    if (!apart || r == rank()) places[r] = window.part(r);
  const Report report = used == told_by_part ? gather_told(window, places)
                                             : transport_->gather(window, used, {}, places);
  if (reader) reader(std::vector<ByteView>(places.begin(), places.end()));
  return report;
}

// ---- parts that tell how much of them is used: first all hear how much comes, then it comes

Report DeviceCommunicator::exchange_told(DeviceWindow& window, DeviceTransport::Places places) {
  const size_t ranks = places.size();
  const std::vector<size_t> number(ranks, sizeof(uint64_t));
  const Report numbers = transport_->exchange(window, number, number, places);
  std::vector<std::span<std::byte>> parts;
  for (int p = 0; p < size(); ++p) parts.push_back(window.part(p));
  parts.insert(parts.end(), places.begin(), places.end());
  const std::vector<size_t> used = told(parts);
  const std::span sent = std::span(used).first(ranks), received = std::span(used).last(ranks);
  for (size_t r = 0; r < ranks; ++r) {
    check_told(window, r, sent[r]);
    check_told(window, rank(), received[r]);
  }
  Report report = transport_->exchange(window, sent, received, places);
  report.traffic.used = std::accumulate(sent.begin(), sent.end(), size_t{0});
  return after(numbers, report, report.arrived);
}

Report DeviceCommunicator::gather_told(DeviceWindow& window, DeviceTransport::Places places) {
  const std::vector<size_t> number(places.size(), sizeof(uint64_t));
  const Report numbers = transport_->gather(window, sizeof(uint64_t), number, places);
  const std::vector<size_t> used = told(places);
  for (size_t r = 0; r < used.size(); ++r) check_told(window, r, used[r]);
  const Report report = transport_->gather(window, used[rank()], used, places);
  return after(numbers, report, report.arrived);
}

// Of each, when the stream has come so far. The computing thread goes on.
std::vector<size_t> DeviceCommunicator::told(DeviceTransport::Places parts) {
  for (size_t i = 0; i < parts.size(); ++i)
    lane_.read(told_->at(i), parts[i].data(), sizeof(uint64_t));
  if (const EventPtr there = lane_.backend().stream().record()) wait_watching(*there);
  return {told_->at(0), told_->at(parts.size())};
}

// Who waits for the device waits for the peers that it waits for, and they may be gone.
void DeviceCommunicator::wait_watching(const Event& event) {
  for (auto looked = Clock::now(); !event.reached();) {
    std::this_thread::sleep_for(kShortPause);
    if (Clock::now() - looked < kPause) continue;
    watch();
    looked = Clock::now();
    std::lock_guard lock(mutex_);
    if (broken_) std::rethrow_exception(broken_);
  }
}

}  // namespace lockstep
