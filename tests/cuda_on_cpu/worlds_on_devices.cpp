// Puts the ranks of tests/dist on devices, one each: the same sources, with windows, parameters and
// gradients in the devices' memory, and bytes that travel through the host. What the devices are
// asked to do has run when the call returns, because those tests look into memory; that streams are
// ordered as they must be is what training_test.cpp shows.
#include <cuda_runtime.h>

#include "core/cuda/open.h"
#include "dist/device_communicator.h"
#include "tests/dist/worlds.h"

extern "C" lockstep::Device* lockstep_open_cuda(int index, lockstep::Fp32Products products);

namespace lockstep {
namespace {

void run_on_device(Communicator& host, const std::function<void(Communicator&)>& body) {
  const std::unique_ptr<Device> device(lockstep_open_cuda(host.rank(), Fp32Products::exact));
  const std::unique_ptr<Lane> lane = device->open_lane();
  Allocator allocator(device->memory());
  const AllocatorScope memory(allocator);
  const BackendScope kernels(device->backend());
  DeviceCommunicator communicator(host, *device, *lane, make_host_staged(host, *device, *lane));
  body(communicator);
  communicator.barrier();
}

[[maybe_unused]] const bool set = [] {
  rank_place().run = run_on_device;
  cuda_on_cpu::device.count = rank_place().most_ranks;
  return true;
}();

}  // namespace
}  // namespace lockstep
