// Parts of device windows by way of the host: read down into a window of the host's communicator,
// which is pinned, so that the device writes to it by itself; exchanged there; and written up from
// what its reader is shown, through pinned slots (core/cuda/memory.h), because what a reader is
// shown ends with its call. Read next: nccl/nccl_transport.cpp.
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
    const auto down = std::make_shared<Below>();
    down->window = host_.window(name, part_bytes, layout);
    const std::span<std::byte> memory = down->window->mine();
    if (!memory.empty()) down->pin = device_.pin(memory);
    return down;
  }

  bool folds(const DeviceWindow& window) const override {
    return window.fold() && host_.topology().hosts_are_blocks();
  }

  void prepare_to_gather(std::span<const WindowPtr> windows) override {
    std::vector<WindowPtr> all;
    for (const WindowPtr& window : windows)
      all.push_back(below(static_cast<const DeviceWindow&>(*window)));
    host_.prepare_to_gather(all);
  }

  // What is summed on the host first is summed there for all of its ranks, mine included.
  Report exchange(DeviceWindow& window, Used sent, Used received, Places places) override {
    const WindowPtr down = writable(window);
    const bool folded = folds(window);
    const int stays = folded ? -1 : host_.rank();
    if (folded) down->fold_with(window.fold());
    for (int p = 0; p < host_.size(); ++p)
      if (p != stays) read_down(window.part(p), down->part(p), sent.empty() ? SIZE_MAX : sent[p]);
    wait_for_device();
    return finish(
        host_.exchange(down, writer(places, received, stays), {sent.begin(), sent.end()}));
  }

  Report gather(DeviceWindow& window, size_t sent, Used received, Places places) override {
    const WindowPtr down = writable(window);
    read_down(window.part(host_.rank()), down->part(host_.rank()), sent);
    wait_for_device();
    return finish(host_.gather(down, writer(places, received, host_.rank()), sent));
  }

  Report broadcast(DeviceWindow& window, int root) override {
    const WindowPtr down = writable(window);
    if (host_.rank() == root) read_down(window.mine(), down->mine(), SIZE_MAX);
    wait_for_device();
    const std::vector<std::span<std::byte>> places(host_.size(), window.mine());
    return finish(host_.broadcast(down, root, writer(places, {}, host_.rank())));
  }

 private:
  static const WindowPtr& below(const DeviceWindow& window) {
    return static_cast<const Below*>(window.companion.get())->window;
  }
  // The peers have read what it held before.
  WindowPtr writable(const DeviceWindow& window) const {
    host_.reclaim(below(window)).wait();
    return below(window);
  }

  void read_down(std::span<const std::byte> from, std::span<std::byte> to, size_t used) const {
    lane_.read(to.data(), from.data(), std::min(used, from.size()));
  }
  void wait_for_device() const { lane_.backend().stream().synchronize(); }

  // Of all views but `mine`. Runs on the host's communication thread, while this one waits.
  Reader writer(Places places, Used received, int mine) const {
    return [this, places, received, mine](std::span<const ByteView> views) {
      device_.use();
      for (int v = 0; v < std::ssize(views); ++v)
        if (v != mine)
          lane_.memory().write(places[v].data(), views[v].data(),
                               received.empty() ? views[v].size() : received[v]);
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
