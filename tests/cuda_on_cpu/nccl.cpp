// NCCL between processes of one machine, for the fake runtime: messages go through sockets named
// after the communicator's id, one for each direction of each pair of ranks. A group is one thing
// to do on its stream: looked at again and again until all its messages are through, never waited
// for. Sums are taken from the last rank to the first, one after the other: an order that is not
// that of dist, so that whoever confuses the two is found, but only from three ranks on.
#include <nccl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <vector>

struct ncclComm {
  int rank, size;
  std::string id;
  int listener;
  std::vector<int> to, from;  // sockets, by rank; -1: not connected yet
  std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
};

namespace {

struct Message {
  bool sends;
  int peer;
  char* at;
  size_t left;
};
struct Group {
  int depth = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Message> messages;
  std::vector<std::function<void()>> sums;  // when all messages are through
};
thread_local Group group;

sockaddr_un address(const std::string& id, int rank, socklen_t& length) {
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  // A name that begins with 0 is no file.
  length = static_cast<socklen_t>(
      offsetof(sockaddr_un, sun_path) + 1 +
      std::snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "nccl-%s-%d", id.c_str(), rank));
  return a;
}

// The number of groups after which nothing moves any more; 0: the communicator never comes up.
int stuck_after() {
  const char* count = std::getenv("CUDA_ON_CPU_NCCL_STUCK");
  return count ? std::atoi(count) : INT_MAX;
}
std::atomic<int> groups{0};

// How long a group takes at least, in ms.
std::chrono::milliseconds least_time() {
  const char* ms = std::getenv("CUDA_ON_CPU_NCCL_MS");
  return std::chrono::milliseconds(ms ? std::atoi(ms) : 0);
}

// The socket of a message, or -1 while there is none: who sends connects and says who it is.
int connection(ncclComm_t comm, const Message& m) {
  if (m.sends && comm->to[m.peer] < 0) {
    socklen_t length;
    const sockaddr_un a = address(comm->id, m.peer, length);
    const int s = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(s, reinterpret_cast<const sockaddr*>(&a), length) != 0) {
      close(s);
      return -1;
    }
    if (send(s, &comm->rank, sizeof comm->rank, MSG_NOSIGNAL) != sizeof comm->rank)
      throw std::runtime_error("nccl: no greeting");
    comm->to[m.peer] = s;
  }
  while (!m.sends && comm->from[m.peer] < 0) {
    const int s = accept4(comm->listener, nullptr, nullptr, 0);
    if (s < 0) return -1;
    int who;
    if (recv(s, &who, sizeof who, MSG_WAITALL) != sizeof who)
      throw std::runtime_error("nccl: a stranger");
    comm->from[who] = s;
  }
  return m.sends ? comm->to[m.peer] : comm->from[m.peer];
}

// Messages of one pair keep their order; those of different pairs do not wait for each other.
bool advance(ncclComm_t comm, std::vector<Message>& messages) {
  bool all = true;
  std::vector<bool> waiting(2 * static_cast<size_t>(comm->size));
  for (Message& m : messages) {
    const size_t pair = 2 * static_cast<size_t>(m.peer) + m.sends;
    while (m.left > 0 && !waiting[pair]) {
      const int s = connection(comm, m);
      const ssize_t n = s < 0     ? -1
                        : m.sends ? send(s, m.at, m.left, MSG_DONTWAIT | MSG_NOSIGNAL)
                                  : recv(s, m.at, m.left, MSG_DONTWAIT);
      if (n <= 0) {  // also a peer that is gone: like the library, this waits for it without an end
        waiting[pair] = true;
        break;
      }
      m.at += n;
      m.left -= static_cast<size_t>(n);
    }
    all = all && m.left == 0;
  }
  return all;
}

void join(ncclComm_t comm, cudaStream_t stream) {
  if (group.depth == 0) throw std::runtime_error("nccl: only in groups");
  group.comm = comm;
  group.stream = stream;
}

ncclResult_t post(ncclComm_t comm, cudaStream_t stream, Message message) {
  join(comm, stream);
  group.messages.push_back(message);
  return ncclSuccess;
}

void send_floats(const float* from, size_t count, int peer, ncclComm_t comm, cudaStream_t stream) {
  ncclSend(from, count * sizeof(float), ncclUint8, peer, comm, stream);
}

// What all others send me is added up with what I have at `mine`, which may be `to`.
void receive_sum(const float* mine, float* to, size_t count, ncclComm_t comm, cudaStream_t stream) {
  join(comm, stream);
  auto parts = std::make_shared<std::vector<std::vector<float>>>(comm->size);
  for (int r = 0; r < comm->size; ++r) {
    std::vector<float>& part = (*parts)[static_cast<size_t>(r)];
    part.resize(count);
    if (r != comm->rank) ncclRecv(part.data(), count * sizeof(float), ncclUint8, r, comm, stream);
  }
  group.sums.push_back([parts, me = static_cast<size_t>(comm->rank), mine, to, count] {
    (*parts)[me].assign(mine, mine + count);
    for (size_t i = 0; i < count; ++i) {
      float sum = parts->back()[i];
      for (size_t r = parts->size() - 1; r-- > 0;) sum += (*parts)[r][i];
      to[i] = sum;
    }
  });
}

// Every rank sends p what it has at `from` + p `step`, and gets the sum of what is sent to it.
void exchange_sums(const float* from, size_t step, float* to, size_t count, ncclComm_t comm,
                   cudaStream_t stream) {
  const auto part = [&](int p) { return from + static_cast<size_t>(p) * step; };
  for (int p = 0; p < comm->size; ++p)
    if (p != comm->rank) send_floats(part(p), count, p, comm, stream);
  receive_sum(part(comm->rank), to, count, comm, stream);
}

// Real ones take other types as well.
void check_floats(ncclDataType_t type) {
  if (type != ncclFloat32) throw std::runtime_error("nccl: sums are of floats");
}

}  // namespace

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSystemError ? "system error" : "no error";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  std::snprintf(id->internal, sizeof id->internal, "%08x%08x", random(), random());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t*) {
  const std::vector<int> none(static_cast<size_t>(size), -1);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
  *comm = new ncclComm{rank, size, id.internal, listener, none, none};
  socklen_t length;
  const sockaddr_un a = address((*comm)->id, rank, length);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&a), length) != 0) return ncclSystemError;
  return listen(listener, size) == 0 ? ncclInProgress : ncclSystemError;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = stuck_after() == 0 ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}

// What is queued ends; sockets stay open until the process ends, because it may be looking at them.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  *comm->aborted = true;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--group.depth > 0 || (group.messages.empty() && group.sums.empty())) return ncclSuccess;
  ncclComm_t comm = group.comm;
  const bool stuck = ++groups > stuck_after();
  using Clock = std::chrono::steady_clock;
  cuda_on_cpu::poll_on_stream(
      group.stream, [comm, aborted = comm->aborted, messages = group.messages, sums = group.sums,
                     stuck, begun = std::optional<Clock::time_point>()]() mutable {
        if (!begun) begun = Clock::now();
        if (*aborted) return true;
        if (stuck || !advance(comm, messages) || Clock::now() - *begun < least_time()) return false;
        for (const auto& sum : sums) sum();
        return true;
      });
  group = {};
  return ncclInProgress;
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return post(comm, stream, {true, peer, static_cast<char*>(const_cast<void*>(from)), count});
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return post(comm, stream, {false, peer, static_cast<char*>(to), count});
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  if (from != to) throw std::runtime_error("nccl: only in place");
  if (comm->rank != root) return ncclRecv(to, count, ncclUint8, root, comm, stream);
  for (int peer = 0; peer < comm->size; ++peer)
    if (peer != root) ncclSend(from, count, ncclUint8, peer, comm, stream);
  if (comm->size == 1) return post(comm, stream, {true, root, nullptr, 0});
  return ncclSuccess;
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
  check_floats(type);
  ++cuda_on_cpu::nccl_sums.reduce_scatter;
  exchange_sums(static_cast<const float*>(from), count, static_cast<float*>(to), count, comm,
                stream);
  return ncclSuccess;
}

ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  check_floats(type);
  ++cuda_on_cpu::nccl_sums.reduce;
  const auto* mine = static_cast<const float*>(from);
  if (comm->rank == root)
    receive_sum(mine, static_cast<float*>(to), count, comm, stream);
  else
    send_floats(mine, count, root, comm, stream);
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
  check_floats(type);
  ++cuda_on_cpu::nccl_sums.all_reduce;
  exchange_sums(static_cast<const float*>(from), 0, static_cast<float*>(to), count, comm, stream);
  return ncclSuccess;
}
