#include "dist/transport.h"

#include <algorithm>
#include <cstring>

namespace lockstep {

Failure::Failure(int rank, Exit code, const char* message)
    : rank(rank), code(static_cast<int32_t>(code)) {
  std::strncpy(this->message, message, sizeof this->message - 1);
}

Topology make_topology(int rank, std::vector<std::string> names,
                       const std::vector<std::string>& identities, int ranks_per_host) {
  Topology topology;
  topology.rank = rank;
  topology.size = static_cast<int>(names.size());
  topology.host_name = std::move(names);
  std::vector<std::string> seen;
  for (int r = 0; r < topology.size; ++r) {
    std::string identity = identities[r];
    if (ranks_per_host > 0) {
      const std::string suffix = fmt::format("#{}", r / ranks_per_host);
      identity += suffix;
      topology.host_name[r] += suffix;
    }
    const auto at = std::find(seen.begin(), seen.end(), identity);
    topology.host_of.push_back(static_cast<int>(at - seen.begin()));
    if (at == seen.end()) seen.push_back(identity);
  }
  topology.hosts = static_cast<int>(seen.size());
  const auto& host_of = topology.host_of;
  topology.local_rank =
      static_cast<int>(std::count(host_of.begin(), host_of.begin() + rank, host_of[rank]));
  topology.local_size = static_cast<int>(std::count(host_of.begin(), host_of.end(), host_of[rank]));
  return topology;
}

}  // namespace lockstep
