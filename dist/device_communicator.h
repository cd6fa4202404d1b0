// The Communicator of ranks that compute on devices. Windows lie in device memory; operations are
// queued on a stream of their own by one thread (the communication thread), in the order in which
// they were started, and readers queue their kernels there. Events order the streams: an operation
// begins after what the caller had queued when it started it, and what the caller queues after
// Work::wait() runs after the operation. All ranks must start all operations in the same order,
// also those of different windows. Read next: device_transport.h, then device_communicator.cpp.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "dist/device_transport.h"

namespace lockstep {

class DeviceCommunicator : public Communicator {
 public:
  // `host` is how the ranks find each other and agree on things; `lane` is a second one of
  // `device`, and `transport` uses it. All outlive this. Created on the thread that computes.
  DeviceCommunicator(Communicator& host, Device& device, Lane& lane,
                     std::unique_ptr<DeviceTransport> transport);
  ~DeviceCommunicator() override;  // what is not done by now fails

  const Topology& topology() const override { return host_.topology(); }
  std::string backend() const override { return transport_->name(); }
  Moment enter(Moment now) override;
  WindowPtr window(const std::string& name, std::span<const size_t> part_bytes,
                   Layout layout) override;
  Work exchange(const WindowPtr& window, Reader reader, std::vector<size_t> used) override;
  Work gather(const WindowPtr& window, Reader reader, size_t used) override;
  Work broadcast(const WindowPtr& window, int root, Reader reader) override;
  Work all_reduce(const WindowPtr& window, Combine combine) override;
  Work reclaim(const WindowPtr& window) override;
  void prepare_to_gather(std::span<const WindowPtr> windows) override {
    transport_->prepare_to_gather(windows);
  }
  size_t arrival_bytes() override { return most_arrived_ + transport_->arrival_bytes(); }
  std::vector<std::vector<std::byte>> all_gather_bytes(ByteView mine) override {
    return host_.all_gather_bytes(mine);
  }
  void call(const std::function<void()>& function) override { host_.call(function); }

 private:
  struct Operation;
  class PinnedNumbers;
  using Body = std::function<DeviceTransport::Report()>;

  Work start(const WindowPtr& window, Body body);
  void run();
  void perform(Operation& operation);
  void watch();
  void break_with(const std::exception_ptr& error);
  DeviceSums* sums_of(const DeviceWindow& window);
  DeviceTransport::Report exchange_parts(DeviceWindow& window, std::span<const size_t> used,
                                         const Reader& reader);
  DeviceTransport::Report gather_parts(DeviceWindow& window, size_t used, const Reader& reader);
  DeviceTransport::Report exchange_told(DeviceWindow& window, DeviceTransport::Places places);
  DeviceTransport::Report gather_told(DeviceWindow& window, DeviceTransport::Places places);
  std::vector<size_t> told(DeviceTransport::Places parts);
  void wait_watching(const Event& event);

  Communicator& host_;
  Device& device_;
  Lane& lane_;
  const std::unique_ptr<DeviceTransport> transport_;
  const std::unique_ptr<PinnedNumbers> told_;  // what parts tell of their used bytes
  Allocator allocator_;  // of what arrives and of the readers' scratch, in the lane's order
  std::atomic<size_t> most_arrived_ = 0;  // bytes, in one operation

  std::mutex mutex_;  // guards the next five
  std::condition_variable changed_;
  std::deque<Operation> submitted_;
  size_t followers_ = 0;  // at the front: started by the reader that runs
  Moment moment_;
  bool stopping_ = false;
  std::exception_ptr broken_;

  std::thread thread_;
};

}  // namespace lockstep
