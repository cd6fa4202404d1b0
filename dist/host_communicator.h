// The Communicator of CPU ranks. One thread per rank (the communication thread) advances all
// started operations: it publishes, watches the peers' counters in shared memory, tests messages to
// other hosts, runs the readers, and sleeps on its doorbell in between. The same code serves ranks
// that are threads and ranks that are processes; only the Transport differs. It does not know MPI,
// and it does not retry: the first failure ends it on every rank. Read next: host_communicator.cpp,
// then host_thread.cpp from run() downwards.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <mutex>
#include <thread>

#include "dist/communicator.h"
#include "dist/relay_buffers.h"
#include "dist/transport.h"
#include "dist/watchdog.h"

namespace lockstep {

class HostCommunicator : public Communicator {
 public:
  HostCommunicator(std::unique_ptr<Transport> transport, const TransportOptions& options);
  ~HostCommunicator() override;  // without finish(): as abort(), so that nobody waits for it

  const Topology& topology() const override { return topology_; }
  std::string backend() const override { return transport_->name(); }
  Moment enter(Moment now) override;
  WindowPtr window(const std::string& name, std::span<const size_t> part_bytes,
                   Layout layout) override;
  Work exchange(const WindowPtr& window, Reader reader, std::vector<size_t> used) override;
  Work gather(const WindowPtr& window, Reader reader, size_t used) override;
  Work broadcast(const WindowPtr& window, int root, Reader reader) override;
  Work all_reduce(const WindowPtr& window, Combine combine) override;
  Work reclaim(const WindowPtr& window) override;
  void prepare_to_gather(std::span<const WindowPtr> windows) override;
  std::vector<std::vector<std::byte>> all_gather_bytes(ByteView mine) override;
  size_t arrival_bytes() override;
  void call(const std::function<void()>& function) override;

  // Collective end of a good run. Everything started must be done.
  void finish();
  // This rank fails: its pending operations, and those of all other ranks, end with `message`.
  void abort(Exit code, const std::string& message);

 private:
  struct Board;
  struct Message;
  struct Operation;
  class HostWindow;
  // `combine` is the exchange of an all_reduce, `collect` its gather: the peers have written
  // already.
  enum class Kind { exchange, combine, gather, collect, broadcast, reclaim, call };

  Work start(Kind kind, const WindowPtr& window, Combine reader, std::vector<size_t> used = {},
             int root = -1);
  bool released(const Operation& operation) const;
  std::shared_ptr<HostWindow> create_window(const std::string& name,
                                            std::span<const size_t> part_bytes, Layout layout);

  // On the communication thread:
  void run();
  bool advance(Operation& operation);
  bool begin(Operation& operation);
  void look_and_post(Operation& operation);
  void post_exchange(Operation& operation);
  void post_folded(Operation& operation);
  void post_gather(Operation& operation);
  void post_broadcast(Operation& operation);
  void send(Operation& operation, int to, ByteView bytes, size_t capacity);
  void receive(Operation& operation, int from, std::span<std::byte> place);
  void fold_for_others(Operation& operation);
  void fold_part(const Operation& operation, int p);
  void deliver(Operation& operation);
  std::span<std::byte> lend_relay(Operation& operation, int from);
  void find_relayed(Operation& operation);
  bool views_ready(Operation& operation);
  void note_arrival(Operation& operation);
  bool sends_done(Operation& operation);
  void drop_done(std::vector<Message>& messages);
  void read(Operation& operation);
  std::vector<int> peers_behind(const Operation& operation) const;
  int relay_behind(const Operation& operation, int r) const;
  bool shown_by_all(const Operation& operation) const;
  int partner(int r, int host) const;
  int my_host() const { return topology_.host_of[topology_.rank]; }
  void check_patience(const Operation& operation) const;
  void check_peers();
  void sleep(uint32_t bell_seen);
  void break_with(std::exception_ptr error);
  std::chrono::nanoseconds limit(const Moment& moment) const;
  void ring_peers();
  void ring(int r);

  std::unique_ptr<Transport> transport_;
  RelayBuffers relays_{*transport_};
  const TransportOptions options_;
  Topology topology_;
  Watchdog watchdog_;
  std::vector<std::vector<int>> ranks_of_;      // by host
  bool hosts_are_blocks_ = false;               // see Window::fold_with
  std::vector<std::shared_ptr<Board>> boards_;  // by rank, null on other hosts
  WindowPtr bulletin_;                          // of all_gather_bytes
  int windows_ = 0;

  std::mutex mutex_;  // guards the next five
  Moment moment_;
  std::deque<Operation> submitted_;
  bool stopping_ = false;
  std::exception_ptr broken_;
  uint64_t started_ = 0;

  std::list<Operation> active_;  // the communication thread's own, as the next
  std::vector<std::weak_ptr<HostWindow>> receivers_;
  Work::Time messages_changed_;  // when a message to or from another host last began or ended
  std::thread thread_;
};

}  // namespace lockstep
