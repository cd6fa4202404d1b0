// Loads the NCCL module.
#include "dist/nccl/open.h"

#include "core/load_module.h"

namespace lockstep {

std::unique_ptr<DeviceTransport> open_nccl(Communicator& host, Lane& lane,
                                           const TransportOptions& options, NcclReduce reduce) {
  static void* module = [] {
    std::string why = "this build has no NCCL";
    void* found = load_module("lockstep_nccl.so", LOCKSTEP_NCCL_MODULE, why);
    if (!found)
      fail(Exit::config, "[dist.backend] no NCCL: {}; use dist.backend mpi, through the host", why);
    return found;
  }();
  using Open = DeviceTransport*(Communicator&, Lane&, const TransportOptions&, NcclReduce);
  const auto open = reinterpret_cast<Open*>(module_entry(module, "lockstep_open_nccl"));
  return std::unique_ptr<DeviceTransport>(open(host, lane, options, reduce));
}

}  // namespace lockstep
