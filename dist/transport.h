// What HostCommunicator needs from the world outside: who is there, memory shared within a host,
// and messages between hosts. Two kinds: threads of one process (local.cpp) and processes
// (mpi.cpp). All calls come from one thread, the communication thread. Read next: local.h.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dist/communicator.h"

namespace lockstep {

struct TransportOptions {
  // Longest waits for another rank, by phase (communicator.h). The defaults are those of the
  // config.
  double timeout_s = 300.0;
  double start_timeout_s = 600.0;
  double checkpoint_timeout_s = 1800.0;
  double eval_timeout_s = 1800.0;
  // For tests: pretend that every so many ranks are a host of their own. 0: the real hosts.
  int ranks_per_host = 0;
  // Messages are cut into pieces of this size, because MPI counts bytes with an int.
  size_t largest_message = size_t{1} << 30;
};

// Why a rank gave up, as it tells the others. Plain bytes: it travels and lies in shared memory.
struct Failure {
  Failure() = default;
  Failure(int rank, Exit code, const char* message);

  int32_t rank = -1;
  int32_t code = 0;
  char message[2000] = {};
};

// Thrown where a rank learns of another one's failure.
class PeerFailure : public Error {
 public:
  PeerFailure(const Failure& failure, const std::string& who)
      : Error(static_cast<Exit>(failure.code),
              fmt::format("[dist] {} failed: {}", who, failure.message)),
        failure_(failure) {}
  const Failure& failure() const { return failure_; }

 private:
  Failure failure_;
};

// What ends the work of `rank`, as the others are told. What the system refuses (memory, threads)
// is a matter of settings; anything unknown is Exit::internal.
Failure failure_of(int rank, const std::exception& error);

// A message under way.
class Transfer {
 public:
  virtual ~Transfer() = default;
  // Neither ever blocks.
  virtual bool done() = 0;
  virtual bool begun() = 0;  // of a receive: the other side has sent, the beginning is there
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string name() const = 0;

  virtual Topology open() = 0;  // first call; collective
  virtual void close() = 0;  // last call after a good run; collective. Not called after a failure.

  // Last call of a rank that failed: lets the ranks of other hosts know, as far as that is possible
  // within a second.
  virtual void announce(const Failure& failure) = 0;
  // What another rank announced, if any did. Never blocks.
  virtual std::optional<Failure> announced() = 0;

  // Collective: bytes[r] > 0 zeroed, present bytes, aligned to a page, on rank r. Returns the
  // memory of each rank of my host by rank, null for the others. Fails on all ranks if it fails on
  // one.
  virtual std::vector<std::shared_ptr<std::byte>> share(std::span<const size_t> bytes,
                                                        const std::string& what) = 0;

  // The same at any time, of one rank alone: present bytes that peers of my host attach to by the
  // handle, which is valid as long as the memory. Whoever cannot fails.
  struct Offered {
    std::shared_ptr<std::byte> memory;
    int64_t handle;
  };
  virtual Offered offer(size_t bytes) = 0;
  virtual std::shared_ptr<std::byte> attach(int peer, int64_t handle, size_t bytes) = 0;

  // Messages with equal (sender, receiver, tag) arrive in order. Both memories must stay untouched
  // until the transfer is done. A message may be shorter than the `capacity` that the receiver
  // offers for it, which both ends know.
  virtual std::unique_ptr<Transfer> send(int to, int tag, ByteView bytes, size_t capacity) = 0;
  virtual std::unique_ptr<Transfer> receive(int from, int tag, std::span<std::byte> capacity) = 0;
};

// Topology of the rank from names and identities (equal identity: one host), by rank.
Topology make_topology(int rank, std::vector<std::string> names,
                       const std::vector<std::string>& identities, int ranks_per_host);

}  // namespace lockstep
