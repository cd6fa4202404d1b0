// Threads that meet, lend each other memory and hand over letters. Read next: mpi.h.
#include "dist/local.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <list>
#include <mutex>
#include <optional>
#include <thread>

#include "core/free_memory.h"
#include "dist/host_communicator.h"
#include "dist/launch.h"

namespace lockstep {

namespace {

// For the other ranks to leave after one has failed: what mpirun gives to processes.
constexpr std::chrono::seconds kLeaveTime{3};

// What the threads share: a meeting point, and letters for ranks that pretend to be on other hosts.
struct LocalWorld {
  using Memories = std::vector<std::shared_ptr<std::byte>>;
  struct Letter {
    int from, to, tag;
    ByteView bytes;
    bool taken = false;
  };

  explicit LocalWorld(int ranks) : memory(ranks) {}

  // First failure wins; wakes whoever waits at the meeting point.
  void fail(const Failure& reason) {
    std::lock_guard lock(mutex);
    if (!failure) failure = reason;
    changed.notify_all();
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Failure> failure;
  int returned = 0;  // ranks that have
  int arrived = 0;
  uint64_t meeting = 0;
  Memories memory;   // laid on the table for the next meeting, by rank
  Memories agreed;   // of the last meeting: whole until all come again
  Memories offered;  // by handle
  std::list<Letter> letters;
};

// Both ends of a letter: the receiver copies straight from the sender's memory, which is why the
// sender has to leave it alone until then.
class LocalTransfer : public Transfer {
 public:
  LocalTransfer(LocalWorld& world, std::list<LocalWorld::Letter>::iterator sent)
      : world_(world), sent_(sent) {}
  LocalTransfer(LocalWorld& world, int from, int to, int tag, std::span<std::byte> target)
      : world_(world), from_(from), to_(to), tag_(tag), target_(target) {}
  ~LocalTransfer() override {
    std::lock_guard lock(world_.mutex);
    if (sent_) world_.letters.erase(*sent_);
  }

  bool done() override {
    std::lock_guard lock(world_.mutex);
    if (sent_) return (*sent_)->taken;
    if (received_) return true;
    for (auto& letter : world_.letters) {
      if (letter.taken || letter.from != from_ || letter.to != to_ || letter.tag != tag_) continue;
      check(letter.bytes.size() <= target_.size(), "[local] message of {} bytes for {} bytes",
            letter.bytes.size(), target_.size());
      std::copy(letter.bytes.begin(), letter.bytes.end(), target_.begin());
      return letter.taken = received_ = true;
    }
    return false;
  }
  bool begun() override { return done(); }

 private:
  LocalWorld& world_;
  std::optional<std::list<LocalWorld::Letter>::iterator> sent_;
  int from_ = 0, to_ = 0, tag_ = 0;
  std::span<std::byte> target_;
  bool received_ = false;
};

class LocalTransport : public Transport {
 public:
  LocalTransport(std::shared_ptr<LocalWorld> world, int rank, const TransportOptions& options)
      : world_(std::move(world)), rank_(rank), options_(options) {}

  std::string name() const override { return "local"; }

  Topology open() override {
    const std::vector<std::string> names(world_->memory.size(), host_name());
    topology_ = make_topology(rank_, names, names, options_.ranks_per_host);
    return topology_;
  }
  void close() override {}
  void announce(const Failure& failure) override { world_->fail(failure); }
  std::optional<Failure> announced() override {
    std::lock_guard lock(world_->mutex);
    return world_->failure;
  }

  std::vector<std::shared_ptr<std::byte>> share(std::span<const size_t> bytes_of,
                                                const std::string& what) override {
    auto memory = meet(allocate(bytes_of[rank_], what), what);
    for (int r = 0; r < topology_.size; ++r)
      if (!topology_.same_host(r)) memory[r] = nullptr;
    return memory;
  }

  Offered offer(size_t bytes) override {
    auto memory = allocate(bytes, "parts from other hosts");
    std::lock_guard lock(world_->mutex);
    world_->offered.push_back(memory);
    return {std::move(memory), std::ssize(world_->offered) - 1};
  }
  std::shared_ptr<std::byte> attach(int, int64_t handle, size_t) override {
    std::lock_guard lock(world_->mutex);
    return world_->offered[handle];
  }

  std::unique_ptr<Transfer> send(int to, int tag, ByteView bytes, size_t) override {
    std::lock_guard lock(world_->mutex);
    auto& letters = world_->letters;
    return std::make_unique<LocalTransfer>(*world_,
                                           letters.insert(letters.end(), {rank_, to, tag, bytes}));
  }
  std::unique_ptr<Transfer> receive(int from, int tag, std::span<std::byte> bytes) override {
    return std::make_unique<LocalTransfer>(*world_, from, rank_, tag, bytes);
  }

 private:
  std::shared_ptr<std::byte> allocate(size_t bytes, const std::string& what) const {
    if (!fits_memory(bytes))
      fail(
          Exit::config,
          "[local] no {} bytes for {} of rank {}: the system has {} left; a smaller dist.bucket_mb "
          "or model needs less",
          bytes, what, rank_, free_memory());
    void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (address == MAP_FAILED)
      fail(
          Exit::config,
          "[local] no {} bytes for {} of rank {}: {}; a smaller dist.bucket_mb or model needs less",
          bytes, what, rank_, std::strerror(errno));
    return {static_cast<std::byte*>(address), [bytes](std::byte* p) { munmap(p, bytes); }};
  }

  std::vector<std::shared_ptr<std::byte>> meet(std::shared_ptr<std::byte> mine,
                                               const std::string& what) {
    LocalWorld& world = *world_;
    std::unique_lock lock(world.mutex);
    const uint64_t meeting = world.meeting;
    world.memory[rank_] = std::move(mine);
    if (++world.arrived == topology_.size) {
      world.arrived = 0;
      world.agreed = world.memory;
      ++world.meeting;
      world.changed.notify_all();
    }
    const bool met =
        world.changed.wait_for(lock, std::chrono::duration<double>(options_.start_timeout_s),
                               [&] { return world.meeting != meeting || world.failure; });
    if (world.meeting == meeting && world.failure)
      throw PeerFailure(*world.failure, topology_.describe(world.failure->rank));
    if (!met)
      fail(Exit::restart, "[local] rank {} waited {:g} s for the others to create {}", rank_,
           options_.start_timeout_s, what);
    return world.agreed;
  }

  std::shared_ptr<LocalWorld> world_;
  const int rank_;
  const TransportOptions options_;
  Topology topology_;
};

void run_rank(LocalWorld& world, int rank, std::unique_ptr<Transport> transport,
              const TransportOptions& options, const std::function<void(Communicator&)>& body) {
  std::unique_ptr<HostCommunicator> communicator;
  auto leave = [&](const Failure& failure) {
    if (communicator) communicator->abort(static_cast<Exit>(failure.code), failure.message);
    world.fail(failure);  // of no effect if that was announced, or another came first
  };
  try {
    communicator = std::make_unique<HostCommunicator>(std::move(transport), options);
    body(*communicator);
    communicator->finish();
  } catch (const std::exception& error) {
    leave(failure_of(rank, error));
  }
}

std::string last_words(const LocalWorld& world) {
  // A lone rank needs no name, nor does an error that all ranks were told with the name of one.
  const std::string& message = world.failure->message;
  return world.memory.size() == 1 || message.starts_with("rank ")
             ? message
             : fmt::format("[rank {}] {}", world.failure->rank, message);
}

// Returns when all ranks have. After a failure that may never be: a thread that hangs in its own
// computation can only be ended with its process.
void wait_for_ranks(LocalWorld& world) {
  const int ranks = static_cast<int>(world.memory.size());
  std::unique_lock lock(world.mutex);
  auto all_returned = [&] { return world.returned == ranks; };
  world.changed.wait(lock, [&] { return all_returned() || world.failure; });
  if (world.changed.wait_for(lock, kLeaveTime, all_returned)) return;
  std::fprintf(stderr, "%s\n[local] %d of %d ranks did not end within %g s after that\n",
               last_words(world).c_str(), ranks - world.returned, ranks,
               std::chrono::duration<double>(kLeaveTime).count());
  _exit(world.failure->code);
}

}  // namespace

void run_local(int ranks, const TransportOptions& options,
               const std::function<void(Communicator&)>& body) {
  if (ranks < 1) fail(Exit::config, "[dist] local_ranks is {}; it must be at least 1", ranks);
  auto world = std::make_shared<LocalWorld>(ranks);
  std::vector<std::thread> threads;
  const auto returned = [&](int count) {
    std::lock_guard lock(world->mutex);
    world->returned += count;
    world->changed.notify_all();
  };
  for (int r = 0; r < ranks; ++r) {
    try {
      threads.emplace_back([&, r] {
        run_rank(*world, r, std::make_unique<LocalTransport>(world, r, options), options, body);
        returned(1);
      });
    } catch (const std::system_error& error) {
      world->fail({r, Exit::config,
                   fmt::format("[local] the system refused the thread of rank {} of {}: {}; fewer "
                               "ranks are right",
                               r, ranks, error.code().message())
                       .c_str()});
      returned(ranks - r);
      break;
    }
  }
  wait_for_ranks(*world);
  for (std::thread& thread : threads) thread.join();
  if (world->failure) throw Error(static_cast<Exit>(world->failure->code), last_words(*world));
}

}  // namespace lockstep
