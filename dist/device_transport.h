// How parts of windows get from device to device. DeviceCommunicator calls from one thread, all
// ranks in the same order; what arrives is there when the lane's stream has come so far. Two kinds:
// through the host (host_staged.cpp) and NCCL. Read next: device_communicator.cpp.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/device.h"
#include "dist/communicator.h"

namespace lockstep {

// Memory of a rank's device: what the Communicator's windows are. `companion` is whatever the
// transport needs beside it.
class DeviceWindow : public Window {
 public:
  DeviceWindow(std::string name, std::span<const size_t> part_bytes, Layout layout, int rank,
               MemorySource& memory, std::shared_ptr<void> companion)
      : Window(std::move(name), part_bytes, layout, rank),
        companion(std::move(companion)),
        memory_(memory),
        bytes_(layout == Layout::whole ? bytes() : part_bytes[rank]),
        data_(bytes_ > 0 ? static_cast<std::byte*>(memory.allocate(bytes_)) : nullptr) {
    memory_.zero(data_, bytes_);
  }
  ~DeviceWindow() override {
    if (data_) memory_.release(data_, bytes_);
  }
  std::span<std::byte> mine() override { return {data_, bytes_}; }

  const std::shared_ptr<void> companion;
  std::shared_ptr<Work::State> last;  // the operation that was started last; DeviceCommunicator's

 private:
  MemorySource& memory_;
  const size_t bytes_;
  std::byte* const data_;
};

struct DeviceReport {
  Work::Time arrived;
  Work::Traffic traffic;
};

// Sums of floats by the transport itself, while they travel and in an order of its own.
class DeviceSums {
 public:
  virtual ~DeviceSums() = default;
  // My part, its first used[rank()] bytes (empty: all), becomes the sum of everyone's; what I hold
  // of other parts stays. `used` is the same on all ranks.
  virtual DeviceReport reduce_scatter(DeviceWindow& window, std::span<const size_t> used) = 0;
  // All of the window becomes the sum of everyone's.
  virtual DeviceReport all_reduce(DeviceWindow& window) = 0;
};

class DeviceTransport {
 public:
  using Report = DeviceReport;
  // On the device, by rank; my own is not used. Of an exchange that folds(): by host.
  using Places = std::span<const std::span<std::byte>>;
  // Numbers of used bytes, by rank; empty: not known.
  using Used = std::span<const size_t>;

  virtual ~DeviceTransport() = default;
  virtual std::string name() const = 0;
  virtual std::shared_ptr<void> companion(const std::string& name,
                                          std::span<const size_t> part_bytes, Layout layout) = 0;

  // Whether exchanges of this window bring one view per host (Window::fold_with), not one per rank.
  virtual bool folds(const DeviceWindow&) const { return false; }
  // As Communicator's, of what it keeps on the host.
  virtual void prepare_to_gather(std::span<const WindowPtr>) {}
  // Memory of the device that it takes beside windows and places; by now.
  virtual size_t arrival_bytes() const { return 0; }

  // Looks after what is queued, now and then while anything is: throws if it failed, or takes
  // longer than the moment allows. abort() ends it, whatever it waits for.
  virtual bool busy() const { return false; }
  virtual void watch(const Moment&) {}
  virtual void abort() {}

  // Part p of mine goes to rank p, its first sent[p] bytes (not known: all); part `rank()` of rank
  // r comes to places[r], its first received[r] bytes. If it folds(), what host h has for it comes
  // to places[h], of my host as well. Where these are not known, a transport that
  // has to know takes them to be as many as I send myself, as it is for codecs of fixed size.
  virtual Report exchange(DeviceWindow& window, Used sent, Used received, Places places) = 0;
  // My part goes to all, its first `sent` bytes (SIZE_MAX: all); part r of rank r comes to
  // places[r], its first received[r] bytes (not known: all).
  virtual Report gather(DeviceWindow& window, size_t sent, Used received, Places places) = 0;
  // All of root's window comes to everyone's.
  virtual Report broadcast(DeviceWindow& window, int root) = 0;

  // Null: sums are left to our kernels.
  virtual DeviceSums* sums() { return nullptr; }
};

// Down to the host, through `host`, and up again. Works with any communicator of the host, and
// where ranks share a device.
std::unique_ptr<DeviceTransport> make_host_staged(Communicator& host, Device& device, Lane& lane);

}  // namespace lockstep
