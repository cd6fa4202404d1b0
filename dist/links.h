// What the links between hosts give, measured when a run starts, beside what their network ports
// promise: so that RDMA that became TCP, a port that was negotiated down and a route over the wrong
// network are seen before a day is lost on them. Read next: links.cpp, codec.h.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "dist/communicator.h"

namespace lockstep {

// A network port that is up, of hardware; of InfiniBand and RoCE under the device's name.
struct Port {
  std::string name;  // empty: none tells its rate
  double mbit = 0;
};
// The fastest of this host, by the kernel's files under `root`.
Port fastest_port(const std::string& root = "/");

struct HostLink {
  std::string host;
  double mbit = 0;  // Mbit/s between its first rank and a neighbour's, the better way of two
  Port port;
};

// By host; of one host alone, none. Every host in turn sends 256 KB to the next
// one, and 4 MB where those took less than 20 ms. Of two hosts both have the same figure, the
// better direction's. Collective.
std::vector<HostLink> measure_links(Communicator& communicator);

// For the log: all of them, or of many the slowest.
std::string describe(std::span<const HostLink> links);

// Links that give half of what others give, or a quarter of what their port promises; with the
// remedies of `backend` (dist.backend).
std::vector<std::string> link_warnings(std::span<const HostLink> links, const std::string& backend);

}  // namespace lockstep
