// Processes: who is where, memory by file descriptor, messages in pieces that MPI can count. Read
// next: futex.h.
#include "dist/mpi.h"

#include <fcntl.h>
#include <mpi.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "core/free_memory.h"
#include "dist/host_communicator.h"
#include "dist/launch.h"

namespace lockstep {

namespace {

using Clock = std::chrono::steady_clock;

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail(Exit::restart, "[mpi] {} failed: {}", call, std::string(text, length));
}

// The first piece of a message: so small that it travels at once, and tells that the rest is
// coming.
constexpr size_t kHerald = 1024;

// One message, in pieces that MPI can count. Both ends cut the capacity, so that a short message
// ends in empty pieces and their numbers agree.
class MpiTransfer : public Transfer {
 public:
  template <class Start>  // start(offset, count, request)
  MpiTransfer(size_t bytes, size_t capacity, size_t largest, Start start) {
    size_t piece = std::min(kHerald, largest);
    for (size_t cut = 0; cut < capacity; cut += std::exchange(piece, largest)) {
      const size_t at = std::min(cut, bytes);
      requests_.push_back(MPI_REQUEST_NULL);
      start(at, static_cast<int>(std::min(piece, bytes - at)), &requests_.back());
    }
  }
  bool done() override {
    int all = 0;
    check_mpi(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &all,
                          MPI_STATUSES_IGNORE),
              "MPI_Testall");
    return all;
  }
  bool begun() override {
    int first = 0;
    check_mpi(MPI_Test(&requests_[0], &first, MPI_STATUS_IGNORE), "MPI_Test");
    return first;
  }

 private:
  std::vector<MPI_Request> requests_;
};

// What a rank tells the others about memory it offers.
struct Offer {
  int fd = -1;
  char error[256] = {};

  template <class... Args>
  void refuse(fmt::format_string<Args...> format, Args&&... args) {
    const auto end = fmt::format_to_n(error, sizeof error - 1, format, std::forward<Args>(args)...);
    *end.out = '\0';
  }
};

class MpiTransport : public Transport {
 public:
  explicit MpiTransport(const TransportOptions& options) : options_(options) {}

  std::string name() const override { return "mpi"; }

  Topology open() override {
    // By default Open MPI writes a message to a TCP connection as a whole. What the other side
    // waits for before it sends its own stands behind that, so two ranks that exchange take turns
    // and use half of a full-duplex link. Sent in fragments, both ways flow at once.
    setenv("OMPI_MCA_btl_tcp_flags", "send", 0);
    int provided = 0, rank = 0, size = 1;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init");
    if (provided < MPI_THREAD_SERIALIZED)
      fail(Exit::config, "[mpi] this MPI was built without thread support (level {} of {})",
           provided, MPI_THREAD_SERIALIZED);
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &world_), "MPI_Comm_dup");
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &failures_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(failures_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(world_, &rank);
    MPI_Comm_size(world_, &size);
    check_launch(size);
    topology_.size = size;

    struct Host {
      char name[128];
      char identity[128];
      int64_t pid;
    } mine{};
    mine.pid = getpid();
    host_name().copy(mine.name, sizeof mine.name - 1);
    host_identity().copy(mine.identity, sizeof mine.identity - 1);
    std::vector<std::string> names, identities;
    for (const Host& host : all_gather(mine, "the host names")) {
      names.emplace_back(host.name);
      identities.emplace_back(host.identity);
      pids_.push_back(host.pid);
    }
    topology_ = make_topology(rank, names, identities, options_.ranks_per_host);
    if (topology_.hosts > 1)
      check_mpi(
          MPI_Irecv(&heard_, sizeof heard_, MPI_BYTE, MPI_ANY_SOURCE, 0, failures_, &hearing_),
          "MPI_Irecv");
    return topology_;
  }

  void close() override {
    if (hearing_ != MPI_REQUEST_NULL) {
      MPI_Cancel(&hearing_);
      MPI_Wait(&hearing_, MPI_STATUS_IGNORE);
    }
    MPI_Comm_free(&failures_);
    MPI_Comm_free(&world_);
    check_mpi(MPI_Finalize(), "MPI_Finalize");
  }

  void announce(const Failure& failure) override {
    std::vector<MPI_Request> requests;
    for (int r = 0; r < topology_.size; ++r) {
      if (topology_.same_host(r)) continue;
      requests.push_back(MPI_REQUEST_NULL);
      MPI_Isend(&failure, sizeof failure, MPI_BYTE, r, 0, failures_, &requests.back());
    }
    const auto until = Clock::now() + std::chrono::seconds(1);
    int all = 0;
    while (!all && Clock::now() < until) {
      if (MPI_Testall(static_cast<int>(requests.size()), requests.data(), &all,
                      MPI_STATUSES_IGNORE) != MPI_SUCCESS)
        return;
      if (!all) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  std::optional<Failure> announced() override {
    int heard = 0;
    if (hearing_ != MPI_REQUEST_NULL)
      check_mpi(MPI_Test(&hearing_, &heard, MPI_STATUS_IGNORE), "MPI_Test");
    if (!heard) return std::nullopt;
    return heard_;
  }

  std::vector<std::shared_ptr<std::byte>> share(std::span<const size_t> bytes,
                                                const std::string& what) override {
    std::vector<std::shared_ptr<std::byte>> memory(topology_.size);
    size_t together = 0;  // the peers of my host take theirs at the same time
    for (int r = 0; r < topology_.size; ++r)
      if (topology_.same_host(r)) together += bytes[r];
    agree(room_for(together), what);
    Offer mine = allocate(bytes[topology_.rank]);
    const auto offers = agree(mine, what);
    for (int r = 0; r < topology_.size; ++r) {
      if (topology_.same_host(r)) memory[r] = map(r, offers[r].fd, bytes[r], mine);
    }
    agree(mine, what);  // by now everyone has mapped it, so the name it was found by may go
    ::close(mine.fd);
    return memory;
  }

  Offered offer(size_t bytes) override {
    Offer mine = room_for(bytes);
    if (!mine.error[0]) mine = allocate(bytes);
    std::shared_ptr<std::byte> memory;
    if (!mine.error[0]) memory = map(topology_.rank, mine.fd, bytes, mine);
    if (mine.error[0]) fail_to_share(topology_.rank, "parts from other hosts", mine);
    const auto close_too = [memory, fd = mine.fd](std::byte*) { ::close(fd); };
    return {{memory.get(), close_too}, mine.fd};
  }
  std::shared_ptr<std::byte> attach(int peer, int64_t handle, size_t bytes) override {
    Offer mine;
    const auto memory = map(peer, static_cast<int>(handle), bytes, mine);
    if (mine.error[0]) fail_to_share(topology_.rank, "parts from other hosts", mine);
    return memory;
  }

  std::unique_ptr<Transfer> send(int to, int tag, ByteView bytes, size_t capacity) override {
    return std::make_unique<MpiTransfer>(
        bytes.size(), capacity, options_.largest_message,
        [&](size_t at, int count, MPI_Request* request) {
          check_mpi(MPI_Isend(bytes.data() + at, count, MPI_BYTE, to, tag, world_, request),
                    "MPI_Isend");
        });
  }
  std::unique_ptr<Transfer> receive(int from, int tag, std::span<std::byte> bytes) override {
    return std::make_unique<MpiTransfer>(
        bytes.size(), bytes.size(), options_.largest_message,
        [&](size_t at, int count, MPI_Request* request) {
          check_mpi(MPI_Irecv(bytes.data() + at, count, MPI_BYTE, from, tag, world_, request),
                    "MPI_Irecv");
        });
  }

 private:
  static Offer room_for(size_t bytes) {
    Offer offer;
    if (!fits_memory(bytes))
      offer.refuse("{} bytes on this host are too many, the system has {} left", bytes,
                   free_memory());
    return offer;
  }

  // Anonymous memory found through /proc/PID/fd: no size limit of /dev/shm (64 MB in a container by
  // default), and nothing left behind by kill -9. Reserved at once, so that too little memory is an
  // error here and not a SIGBUS in the middle of backward.
  Offer allocate(size_t bytes) {
    Offer offer;
    offer.fd = memfd_create("lockstep", MFD_CLOEXEC);
    if (offer.fd < 0) {
      offer.refuse("memfd_create: {}", std::strerror(errno));
    } else if (ftruncate(offer.fd, static_cast<off_t>(bytes)) != 0) {
      offer.refuse("ftruncate: {}", std::strerror(errno));
    } else if (const int code = posix_fallocate(offer.fd, 0, static_cast<off_t>(bytes))) {
      offer.refuse("posix_fallocate: {}", std::strerror(code));
    }
    return offer;
  }

  std::shared_ptr<std::byte> map(int rank, int theirs, size_t bytes, Offer& mine) {
    const std::string path = fmt::format("/proc/{}/fd/{}", pids_[rank], theirs);
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    void* address = MAP_FAILED;
    if (fd >= 0)
      address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (address == MAP_FAILED) mine.refuse("mapping {}: {}", path, std::strerror(errno));
    if (fd >= 0) ::close(fd);
    if (address == MAP_FAILED) return nullptr;
    return {static_cast<std::byte*>(address), [bytes](std::byte* p) { munmap(p, bytes); }};
  }

  // All ranks learn of a failure of one, and all fail with the same words.
  std::vector<Offer> agree(const Offer& mine, const std::string& what) {
    auto offers = all_gather(mine, what.c_str());
    for (int r = 0; r < topology_.size; ++r) {
      if (offers[r].error[0]) fail_to_share(r, what, offers[r]);
    }
    return offers;
  }

  [[noreturn]] void fail_to_share(int rank, const std::string& what, const Offer& offer) const {
    fail(Exit::config,
         "[dist] {} has no shared memory for {}: {}; use a smaller dist.bucket_mb or model, fewer "
         "ranks per host, or raise the memory limit of the container",
         topology_.describe(rank), what, offer.error);
  }

  template <class T>
  std::vector<T> all_gather(const T& mine, const char* what) {
    std::vector<T> all(topology_.size);
    MPI_Request request;
    check_mpi(MPI_Iallgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE,
                             world_, &request),
              "MPI_Iallgather");
    const auto since = Clock::now();
    for (int done = 0;;) {
      check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done) return all;
      if (Clock::now() - since > std::chrono::duration<double>(options_.start_timeout_s))
        fail(Exit::restart, "[dist] rank {} on host {} waited {:g} s for all ranks to agree on {}",
             topology_.rank, host_name(), options_.start_timeout_s, what);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  const TransportOptions options_;
  MPI_Comm world_ = MPI_COMM_NULL;
  MPI_Comm failures_ = MPI_COMM_NULL;
  MPI_Request hearing_ = MPI_REQUEST_NULL;  // for the first failure on another host
  Failure heard_;
  Topology topology_;
  std::vector<int64_t> pids_;  // by rank
};

}  // namespace

void run_mpi(const TransportOptions& options, const std::function<void(Communicator&)>& body) {
  HostCommunicator communicator(std::make_unique<MpiTransport>(options), options);
  try {
    body(communicator);
    communicator.finish();
  } catch (const std::exception& error) {
    const Failure failure = failure_of(communicator.rank(), error);
    communicator.abort(static_cast<Exit>(failure.code), failure.message);
    throw;
  }
}

}  // namespace lockstep
