// What a rank computes on: the CPU, or the GPU that is its own among the ranks of its host. The one
// place that chooses. Read next: ranks.cpp.
#pragma once

#include <memory>

#include "dist/device_communicator.h"
#include "dist/transport.h"
#include "examples/config.h"

namespace lockstep {

class RankDevice {
 public:
  // Collective. Exit::config if train.device is cuda and a rank finds no GPU for itself.
  RankDevice(const Config& config, Communicator& host, const TransportOptions& options);

  // Where tensors live, and how the ranks exchange them.
  MemorySource& memory() const { return device_ ? device_->memory() : host_memory(); }
  Backend& backend() const { return device_ ? device_->backend() : cpu_backend(); }
  Recorder* recorder() const { return device_ ? &device_->recorder() : nullptr; }
  Communicator& communicator() const {
    return on_device_ ? static_cast<Communicator&>(*on_device_) : host_;
  }

 private:
  Communicator& host_;
  std::unique_ptr<Device> device_;  // null: the CPU
  std::unique_ptr<Lane> lane_;      // of the communicator
  std::unique_ptr<DeviceCommunicator> on_device_;
};

// The index of my device among those that I see. visible[r]: those that rank r sees, by names that
// are the same for all; ranks of my host choose in order, each the first that is free. With `share`
// they take turns instead. Exit::config if none is left.
int choose_device(const Topology& where, const std::vector<std::vector<std::string>>& visible,
                  bool share);

}  // namespace lockstep
