// Parts of windows from GPU to GPU by NCCL, queued on the lane's stream; nobody waits. Unless
// NcclReduce::native asks for NCCL's sums, our kernels sum, in rank order, those of a host before
// anything goes to another: then only sends, receives and broadcasts are used, so no algorithm of
// NCCL's decides about bits. The communicator is non-blocking, so that a peer that is gone or stuck
// can be given up, at the start as well. MPI only carries the id. Read next:
// ../transport.h.
#include <cuda_runtime.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <thread>

#include "core/cuda/stream.h"
#include "dist/arrivals.h"
#include "dist/nccl/open.h"

namespace lockstep {

namespace {

using Clock = std::chrono::steady_clock;

class Nccl : public DeviceTransport, private DeviceSums {
 public:
  Nccl(Communicator& host, Lane& lane, const TransportOptions& options, NcclReduce reduce)
      : host_(host),
        queue_(lane.backend().stream()),
        stream_(static_cast<CudaStream&>(queue_).native()),
        options_(options),
        reduce_(reduce),
        since_(Clock::now()) {
    ncclUniqueId id{};
    if (host.rank() == 0) check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
    const auto ids = host.all_gather_bytes(std::as_bytes(std::span(&id, 1)));
    std::memcpy(&id, ids[0].data(), sizeof id);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t begun =
        ncclCommInitRankConfig(&communicator_, host.size(), id, host.rank(), &config);
    settle(begun, "ncclCommInitRankConfig", {Phase::start, 0});
  }
  ~Nccl() override {
    try {
      for (; busy(); watch({})) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } catch (const std::exception&) {  // known to whoever waited for it
    }
    abort();  // nothing is under way: that frees it
  }

  std::string name() const override { return "nccl"; }
  std::shared_ptr<void> companion(const std::string&, std::span<const size_t>, Layout) override {
    return nullptr;
  }

  bool folds(const DeviceWindow& window) const override {
    return window.fold() && host_.topology().hosts_are_blocks();
  }
  size_t arrival_bytes() const override { return most_to_fold_; }

  Report exchange(DeviceWindow& window, Used sent, Used received, Places places) override {
    if (folds(window)) return exchange_folded(window, sent, places);
    const int me = host_.rank();
    const auto bytes = [&](int p) { return sent.empty() ? window.part_bytes(p) : sent[p]; };
    const auto comes = [&](int p) { return received.empty() ? bytes(me) : received[p]; };
    Report report{Clock::now(), {}};
    check_nccl(ncclGroupStart(), "ncclGroupStart");
    for (int p = 0; p < host_.size(); ++p) {
      if (p == me) continue;
      send(window.part(p).first(bytes(p)), p);
      receive(places[p].first(comes(p)), p);
      count(report.traffic, p, bytes(p));
    }
    finish_group("exchange", window);
    return report;
  }

  // Parts differ in size, so each is a broadcast of its own; NCCL runs a group of them at once.
  Report gather(DeviceWindow& window, size_t, Used received, Places places) override {
    const auto bytes = [&](int r) { return received.empty() ? window.part_bytes(r) : received[r]; };
    Report report{Clock::now(), {}};
    check_nccl(ncclGroupStart(), "ncclGroupStart");
    for (int r = 0; r < host_.size(); ++r)
      if (bytes(r) > 0)
        post(ncclBroadcast(places[r].data(), places[r].data(), bytes(r), ncclUint8, r,
                           communicator_, stream_),
             "ncclBroadcast");
    count_for_all(report.traffic, bytes(host_.rank()));
    finish_group("gather", window);
    return report;
  }

  Report broadcast(DeviceWindow& window, int root) override {
    Report report{Clock::now(), {}};
    std::byte* whole = window.mine().data();
    check_nccl(ncclGroupStart(), "ncclGroupStart");
    post(ncclBroadcast(whole, whole, window.bytes(), ncclUint8, root, communicator_, stream_),
         "ncclBroadcast");
    if (host_.rank() == root) count_for_all(report.traffic, window.bytes());
    finish_group("broadcast", window);
    return report;
  }

  DeviceSums* sums() override { return reduce_ == NcclReduce::native ? this : nullptr; }

  bool busy() const override { return !queued_.empty(); }

  void watch(const Moment& now) override {
    while (!queued_.empty() && queued_.front().done->reached()) {
      queued_.pop_front();
      since_ = Clock::now();
    }
    ncclResult_t error = ncclSuccess;
    check_nccl(ncclCommGetAsyncError(communicator_, &error), "ncclCommGetAsyncError");
    if (error != ncclInProgress) check_nccl(error, "an operation");
    if (!queued_.empty()) check_patience(queued_.front().what, now);
  }

  void abort() override {
    if (communicator_) static_cast<void>(ncclCommAbort(communicator_));
    communicator_ = nullptr;
    queued_.clear();
  }

 private:
  using Part = std::function<std::span<std::byte>(int p)>;  // what is used of it, in my window

  // In two groups: what my host's ranks have for a part comes to the one that deals with it, and
  // what that makes of it goes to the owner.
  Report exchange_folded(DeviceWindow& window, Used used, Places places) {
    const Topology& where = host_.topology();
    const int me = where.rank, host = where.host_of[me];
    const Part part = [&](int p) {
      return window.part(p).first(used.empty() ? window.part_bytes(p) : used[p]);
    };
    Report report{Clock::now(), {}};
    const std::vector<int> mine = fold_within_host(window, part);
    check_nccl(ncclGroupStart(), "ncclGroupStart");
    for (int p : mine) {
      if (p == me) continue;
      send(part(p), p);
      report.traffic.to_hosts += part(p).size();
    }
    for (int h = 0; h < where.hosts; ++h)
      if (h != host) receive(places[h].first(part(me).size()), dealer(me, h));
    finish_group("exchange between hosts", window);
    for (int p = 0; p < where.size; ++p)
      if (p != me) report.traffic.to_ranks += part(p).size();
    return report;
  }

  // Returns the parts that I deal with: in my window stands then what my host has for them.
  std::vector<int> fold_within_host(DeviceWindow& window, const Part& part) {
    const Topology& where = host_.topology();
    const int me = where.rank, host = where.host_of[me];
    const std::vector<int> peers = where.ranks_on(host);
    std::vector<int> mine;
    std::vector<size_t> bytes;  // by part and peer
    for (int p = 0; p < where.size; ++p) {
      if (dealer(p, host) != me) continue;
      mine.push_back(p);
      for (int peer : peers) bytes.push_back(peer == me ? 0 : part(p).size());
    }
    Arrivals arrivals(bytes, most_to_fold_);
    const auto of_peers = [&](size_t i) {
      return std::span(arrivals.places()).subspan(i * peers.size(), peers.size());
    };
    check_nccl(ncclGroupStart(), "ncclGroupStart");
    for (int p = 0; p < where.size; ++p)
      if (const int to = dealer(p, host); to != me) send(part(p), to);
    for (size_t i = 0; i < mine.size(); ++i)
      for (size_t k = 0; k < peers.size(); ++k) receive(of_peers(i)[k], peers[k]);
    finish_group("exchange within hosts", window);
    for (size_t i = 0; i < mine.size(); ++i) {
      const std::span<std::byte> folded = part(mine[i]);
      std::vector<ByteView> views(of_peers(i).begin(), of_peers(i).end());
      views[where.local_rank] = folded;
      window.fold()(views, {&folded, 1});
    }
    return mine;
  }

  // Of the ranks of a host, the one that deals with part p: different ones for different parts.
  int dealer(int p, int host) const {
    if (host_.topology().host_of[p] == host) return p;
    const std::vector<int> ranks = host_.topology().ranks_on(host);
    return ranks[p % ranks.size()];
  }

  // Parts of one size are what ncclReduceScatter is for; of others each is a reduction of its own,
  // and NCCL runs a group of them at once. Both send what an exchange sends.
  Report reduce_scatter(DeviceWindow& window, std::span<const size_t> used) override {
    const int me = host_.rank();
    const auto bytes = [&](int p) { return used.empty() ? window.part_bytes(p) : used[p]; };
    bool alike = true;
    for (int p = 0; p < host_.size(); ++p)
      alike = alike && bytes(p) == window.part_bytes(p) && bytes(p) == bytes(0);
    Report report{Clock::now(), {}};
    check_nccl(ncclGroupStart(), "ncclGroupStart");
    if (alike && bytes(0) > 0)
      post(ncclReduceScatter(window.mine().data(), window.part(me).data(), floats(bytes(0)),
                             ncclFloat32, ncclSum, communicator_, stream_),
           "ncclReduceScatter");
    for (int p = 0; p < host_.size(); ++p) {
      std::byte* part = window.part(p).data();
      if (!alike && bytes(p) > 0)
        post(ncclReduce(part, part, floats(bytes(p)), ncclFloat32, ncclSum, p, communicator_,
                        stream_),
             "ncclReduce");
      if (p != me) count(report.traffic, p, bytes(p));
    }
    finish_group("sum", window);
    return report;
  }

  Report all_reduce(DeviceWindow& window) override {
    Report report{Clock::now(), {}};
    std::byte* whole = window.mine().data();
    check_nccl(ncclGroupStart(), "ncclGroupStart");
    if (window.bytes() > 0)
      post(ncclAllReduce(whole, whole, floats(window.bytes()), ncclFloat32, ncclSum, communicator_,
                         stream_),
           "ncclAllReduce");
    for (int p = 0; p < host_.size(); ++p)
      if (p != host_.rank()) count(report.traffic, p, window.part_bytes(p));
    count_for_all(report.traffic, window.part_bytes(host_.rank()));
    finish_group("sum", window);
    return report;
  }

  static size_t floats(size_t bytes) {
    check(bytes % sizeof(float) == 0, "[nccl] a part of {} bytes is not floats", bytes);
    return bytes / sizeof(float);
  }

  void send(ByteView bytes, int to) {
    if (!bytes.empty())
      post(ncclSend(bytes.data(), bytes.size(), ncclUint8, to, communicator_, stream_), "ncclSend");
  }
  void receive(std::span<std::byte> place, int from) {
    if (!place.empty())
      post(ncclRecv(place.data(), place.size(), ncclUint8, from, communicator_, stream_),
           "ncclRecv");
  }

  struct Queued {
    std::string what;
    EventPtr done;
  };

  static void check_nccl(ncclResult_t result, const char* what) {
    if (result != ncclSuccess)
      fail(Exit::restart, "[nccl] {} failed: {}", what, ncclGetErrorString(result));
  }
  // Inside a group nothing has begun yet.
  static void post(ncclResult_t result, const char* what) {
    if (result != ncclInProgress) check_nccl(result, what);
  }

  void count(Work::Traffic& traffic, int to, size_t bytes) const {
    traffic.to_ranks += bytes;
    if (!host_.topology().same_host(to)) traffic.to_hosts += bytes;
  }
  // What all get comes to each host once: NCCL's rings pass through one host after the other.
  void count_for_all(Work::Traffic& traffic, size_t bytes) const {
    traffic.to_ranks += bytes * (host_.size() - 1);
    traffic.to_hosts += bytes * (host_.topology().hosts - 1);
  }

  void finish_group(const char* operation, const DeviceWindow& window) {
    if (queued_.empty()) since_ = Clock::now();
    const std::string what = fmt::format("{} of '{}'", operation, window.name());
    settle(ncclGroupEnd(), what.c_str(), {});
    queued_.push_back({what, queue_.record()});
  }

  // A call of a non-blocking communicator may go on after it returned.
  void settle(ncclResult_t result, const char* what, const Moment& now) {
    while (result == ncclInProgress) {
      check_nccl(ncclCommGetAsyncError(communicator_, &result), what);
      if (result != ncclInProgress) break;
      try {
        check_patience(what, now);
      } catch (...) {
        abort();
        throw;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    check_nccl(result, what);
  }

  // Progress begins the wait anew.
  void check_patience(const std::string& what, const Moment& now) const {
    const double limits[] = {options_.start_timeout_s, options_.timeout_s,
                             options_.checkpoint_timeout_s, options_.eval_timeout_s};
    const double limit = limits[static_cast<int>(now.phase)];
    if (Clock::now() - since_ < std::chrono::duration<double>(limit)) return;
    fail(Exit::restart, "[nccl] {} {}: not done after {} s ({}); a rank is gone or stuck", what,
         now.describe(), limit, now.limit_key());
  }

  Communicator& host_;
  Stream& queue_;
  const cudaStream_t stream_;
  const TransportOptions options_;
  const NcclReduce reduce_;
  ncclComm_t communicator_ = nullptr;
  std::deque<Queued> queued_;
  std::atomic<size_t> most_to_fold_ = 0;  // bytes, in one operation
  Clock::time_point since_;               // of the last progress
};

}  // namespace

}  // namespace lockstep

extern "C" lockstep::DeviceTransport* lockstep_open_nccl(lockstep::Communicator& host,
                                                         lockstep::Lane& lane,
                                                         const lockstep::TransportOptions& options,
                                                         lockstep::NcclReduce reduce) {
  return new lockstep::Nccl(host, lane, options, reduce);
}
