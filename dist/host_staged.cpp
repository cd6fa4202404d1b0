// Parts of device windows by way of the host: read down into a window of the host's communicator,
// exchanged there, and written up from what its reader is shown. Read next:
// device_communicator.cpp.
#include "dist/device_transport.h"

namespace lockstep {

namespace {

class HostStaged : public DeviceTransport {
 public:
  HostStaged(Communicator& host, Device& device, Lane& lane)
      : host_(host), device_(device), memory_(lane.memory()) {}

  std::string name() const override { return host_.backend() + ", through the host"; }

  std::shared_ptr<void> companion(const std::string& name, std::span<const size_t> part_bytes,
                                  Layout layout) override {
    return host_.window(name, part_bytes, layout);
  }

  Report exchange(DeviceWindow& window, std::span<const size_t> used, Places places) override {
    const WindowPtr below = writable(window);
    for (int p = 0; p < host_.size(); ++p)
      if (p != host_.rank())
        read_down(window.part(p), below->part(p), used.empty() ? SIZE_MAX : used[p]);
    return finish(host_.exchange(below, writer(places), {used.begin(), used.end()}));
  }

  Report gather(DeviceWindow& window, size_t used, Places places) override {
    const WindowPtr below = writable(window);
    read_down(window.part(host_.rank()), below->part(host_.rank()), used);
    return finish(host_.gather(below, writer(places), used));
  }

  Report broadcast(DeviceWindow& window, int root) override {
    const WindowPtr below = writable(window);
    if (host_.rank() == root) read_down(window.mine(), below->mine(), SIZE_MAX);
    const std::vector<std::span<std::byte>> places(host_.size(), window.mine());
    return finish(host_.broadcast(below, root, writer(places)));
  }

 private:
  // The peers have read what it held before.
  WindowPtr writable(const DeviceWindow& window) const {
    WindowPtr below = std::static_pointer_cast<Window>(window.companion);
    host_.reclaim(below).wait();
    return below;
  }

  void read_down(std::span<const std::byte> from, std::span<std::byte> to, size_t used) const {
    memory_.read(to.data(), from.data(), std::min(used, from.size()));
  }

  // Runs on the host's communication thread, while this one waits.
  Reader writer(Places places) const {
    return [this, places](std::span<const ByteView> views) {
      device_.use();
      for (int r = 0; r < host_.size(); ++r)
        if (r != host_.rank()) memory_.write(places[r].data(), views[r].data(), views[r].size());
    };
  }

  static Report finish(const Work& work) {
    work.wait();
    return {work.timing().arrived, work.traffic()};
  }

  Communicator& host_;
  Device& device_;
  MemorySource& memory_;
};

}  // namespace

std::unique_ptr<DeviceTransport> make_host_staged(Communicator& host, Device& device, Lane& lane) {
  return std::make_unique<HostStaged>(host, device, lane);
}

}  // namespace lockstep
