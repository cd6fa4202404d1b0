// Who is there and what went wrong, the same for threads and processes. Read next: local.h.
#include "dist/transport.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <system_error>

namespace lockstep {

Failure::Failure(int rank, Exit code, const char* message)
    : rank(rank), code(static_cast<int32_t>(code)) {
  std::strncpy(this->message, message, sizeof this->message - 1);
}

Failure failure_of(int rank, const std::exception& error) {
  if (const auto* peer = dynamic_cast<const PeerFailure*>(&error)) return peer->failure();
  if (const auto* known = dynamic_cast<const Error*>(&error))
    return {rank, known->code(), known->what()};
  if (dynamic_cast<const std::bad_alloc*>(&error))
    return {rank, Exit::config, "[memory] the system refused memory; something smaller is right"};
  if (dynamic_cast<const std::system_error*>(&error)) return {rank, Exit::config, error.what()};
  return {rank, Exit::internal, error.what()};
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
