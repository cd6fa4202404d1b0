// Parts of device windows by way of the host: read down into a window of the host's communicator,
// which is pinned, so that the device writes to it by itself; exchanged there; and written up from
// what its reader is shown, through pinned slots (core/cuda/memory.h), because what a reader is
// shown ends with its call. Read next: device_communicator.cpp.
#include "dist/device_transport.h"

namespace lockstep {

namespace {

// What stands below a window of the device. The pin goes before its memory does.
struct Below {
  WindowPtr window;
  std::shared_ptr<void> pin;
};

class HostStaged : public DeviceTransport {
 public:
  HostStaged(Communicator& host, Device& device, Lane& lane)
      : host_(host), device_(device), lane_(lane) {}

  std::string name() const override { return host_.backend() + ", through the host"; }

  std::shared_ptr<void> companion(const std::string& name, std::span<const size_t> part_bytes,
                                  Layout layout) override {
    const auto below = std::make_shared<Below>();
    below->window = host_.window(name, part_bytes, layout);
    const std::span<std::byte> memory = below->window->mine();
    if (!memory.empty()) below->pin = device_.pin(memory);
    return below;
  }

  Report exchange(DeviceWindow& window, Used sent, Used received, Places places) override {
    const WindowPtr below = writable(window);
    for (int p = 0; p < host_.size(); ++p)
      if (p != host_.rank())
        read_down(window.part(p), below->part(p), sent.empty() ? SIZE_MAX : sent[p]);
    wait_for_device();
    return finish(host_.exchange(below, writer(places, received), {sent.begin(), sent.end()}));
  }

  Report gather(DeviceWindow& window, size_t sent, Used received, Places places) override {
    const WindowPtr below = writable(window);
    read_down(window.part(host_.rank()), below->part(host_.rank()), sent);
    wait_for_device();
    return finish(host_.gather(below, writer(places, received), sent));
  }

  Report broadcast(DeviceWindow& window, int root) override {
    const WindowPtr below = writable(window);
    if (host_.rank() == root) read_down(window.mine(), below->mine(), SIZE_MAX);
    wait_for_device();
    const std::vector<std::span<std::byte>> places(host_.size(), window.mine());
    return finish(host_.broadcast(below, root, writer(places, {})));
  }

 private:
  // The peers have read what it held before.
  WindowPtr writable(const DeviceWindow& window) const {
    WindowPtr below = std::static_pointer_cast<Below>(window.companion)->window;
    host_.reclaim(below).wait();
    return below;
  }

  void read_down(std::span<const std::byte> from, std::span<std::byte> to, size_t used) const {
    lane_.read(to.data(), from.data(), std::min(used, from.size()));
  }
  void wait_for_device() const { lane_.backend().stream().synchronize(); }

  // Runs on the host's communication thread, while this one waits.
  Reader writer(Places places, Used received) const {
    return [this, places, received](std::span<const ByteView> views) {
      device_.use();
      for (int r = 0; r < host_.size(); ++r)
        if (r != host_.rank())
          lane_.memory().write(places[r].data(), views[r].data(),
                               received.empty() ? views[r].size() : received[r]);
    };
  }

  static Report finish(const Work& work) {
    work.wait();
    return {work.timing().arrived, work.traffic()};
  }

  Communicator& host_;
  Device& device_;
  Lane& lane_;
};

}  // namespace

std::unique_ptr<DeviceTransport> make_host_staged(Communicator& host, Device& device, Lane& lane) {
  return std::make_unique<HostStaged>(host, device, lane);
}

}  // namespace lockstep
