// Choosing among the GPUs that the ranks of a host see. Read next: ranks.cpp.
#include "examples/rank_device.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string_view>

#include "core/cuda/open.h"
#include "core/plural.h"
#include "dist/nccl/open.h"

namespace lockstep {

namespace {

std::vector<std::vector<std::string>> all_visible(Communicator& host) {
  std::string mine;
  for (const std::string& uuid : cuda_uuids()) mine += uuid + "\n";
  std::vector<std::vector<std::string>> all;
  for (const auto& bytes : host.all_gather_bytes(std::as_bytes(std::span(mine)))) {
    all.emplace_back();
    std::string line;
    for (std::byte b : bytes) {
      if (static_cast<char>(b) != '\n') {
        line += static_cast<char>(b);
      } else {
        all.back().push_back(line);
        line.clear();
      }
    }
  }
  return all;
}

// NVIDIA's libraries obey this variable rather than whoever calls them.
void refuse_override() {
  const char* override = std::getenv("NVIDIA_TF32_OVERRIDE");
  if (override && std::string_view(override) == "0")
    fail(Exit::config,
         "[train.precision] tf32, but NVIDIA_TF32_OVERRIDE=0 in the environment forbids TF32; "
         "unset it, or use fp32");
}

}  // namespace

int choose_device(const Topology& where, const std::vector<std::vector<std::string>>& visible,
                  bool share) {
  const std::vector<std::string>& mine = visible[where.rank];
  if (share) return where.local_rank % static_cast<int>(mine.size());
  std::set<std::string> taken, there;
  for (int r = 0; r < where.size; ++r) {
    if (!where.same_host(r)) continue;
    const auto free = std::ranges::find_if(
        visible[r], [&](const std::string& uuid) { return !taken.contains(uuid); });
    if (r == where.rank && free != visible[r].end())
      return static_cast<int>(free - visible[r].begin());
    if (free != visible[r].end()) taken.insert(*free);
    there.insert(visible[r].begin(), visible[r].end());
  }
  fail(Exit::config,
       "[dist.backend] {} ranks on host {} see {}, and NCCL needs one for each; start fewer, or "
       "share them with dist.backend mpi, which exchanges through the host",
       where.local_size, where.host_name[where.rank], plural(std::ssize(there), "GPU"));
}

RankDevice::RankDevice(const Config& config, Communicator& host, const TransportOptions& options)
    : host_(host) {
  if (config.train.device == "cpu") return;
  const bool nccl = config.dist.backend == "nccl";
  const bool tf32 = config.train.precision == "tf32";
  if (tf32) refuse_override();
  device_ = open_cuda(choose_device(host.topology(), all_visible(host), !nccl),
                      tf32 ? Fp32Products::tf32 : Fp32Products::exact);
  lane_ = device_->open_lane();
  on_device_ = std::make_unique<DeviceCommunicator>(
      host, *device_, *lane_,
      nccl ? open_nccl(host, *lane_, options,
                       config.dist.nccl_reduce == "native" ? NcclReduce::native : NcclReduce::own)
           : make_host_staged(host, *device_, *lane_));
}

}  // namespace lockstep
