// Looking up ports, measuring links, and what to say of both. Read next: codec.h.
#include "dist/links.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "core/median.h"

namespace lockstep {

namespace {

using std::filesystem::path;

// What takes longer than kLongUs says enough; of what does not, more is sent.
constexpr size_t kFew = 256 << 10, kMany = 4 << 20;
constexpr int64_t kLongUs = 20000;
constexpr double kSlowLink = 0.5, kSlowPort = 0.25;
constexpr size_t kShown = 4;

std::string first_line(const path& file) {
  std::string line;
  std::ifstream in(file);
  std::getline(in, line);
  return line;
}

double number_in(const path& file) {
  double value = 0;
  std::ifstream(file) >> value;
  return value;
}

std::vector<path> entries_of(const path& folder) {
  std::error_code none;
  std::vector<path> entries;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none))
    entries.push_back(entry.path());
  return entries;
}

// From the first to the last byte of a message, as all ranks learn.
int64_t microseconds(Communicator& communicator, const WindowPtr& window, size_t bytes, int from,
                     int to) {
  std::vector<size_t> used(communicator.size(), 0);
  if (communicator.rank() == from) used[to] = bytes;
  const Work work = communicator.exchange(
      window, [](auto) {}, used);
  work.wait();
  const std::chrono::nanoseconds took = work.timing().finished - work.timing().arrived;
  return max_over_ranks(communicator, communicator.rank() == to ? took.count() / 1000 + 1 : 0);
}

double measured_mbit(Communicator& communicator, const WindowPtr& window, int from, int to) {
  size_t bytes = kFew;
  int64_t us = microseconds(communicator, window, bytes, from, to);
  if (us < kLongUs) us = microseconds(communicator, window, bytes = kMany, from, to);
  return 8.0 * static_cast<double>(bytes) / static_cast<double>(us);
}

double median_mbit(std::span<const HostLink> links) {
  std::vector<double> rates;
  for (const HostLink& link : links) rates.push_back(link.mbit);
  return median(std::move(rates));
}

}  // namespace

Port fastest_port(const std::string& root) {
  Port fastest;
  const auto offer = [&](const path& device, double mbit) {
    if (mbit > fastest.mbit) fastest = {device.filename().string(), mbit};
  };
  // "100 Gb/sec (4X EDR)", "4: ACTIVE"
  for (const path& device : entries_of(path(root) / "sys/class/infiniband"))
    for (const path& port : entries_of(device / "ports"))
      if (first_line(port / "state").ends_with("ACTIVE"))
        offer(device, 1e3 * number_in(port / "rate"));
  // In Mbit/s; -1 if unknown. Virtual ones have no device.
  for (const path& device : entries_of(path(root) / "sys/class/net"))
    if (exists(device / "device") && first_line(device / "operstate") == "up")
      offer(device, number_in(device / "speed"));
  return fastest;
}

std::vector<HostLink> measure_links(Communicator& communicator) {
  const Topology& where = communicator.topology();
  if (where.hosts == 1) return {};
  std::vector<int> first;  // of each host's ranks
  std::vector<size_t> parts(where.size, 0);
  for (int host = 0; host < where.hosts; ++host) {
    first.push_back(where.ranks_on(host).front());
    parts[first.back()] = kMany;
  }
  const WindowPtr window = communicator.window("links", parts);
  std::vector<double> to_next;  // by host
  for (int host = 0; host < where.hosts; ++host)
    to_next.push_back(
        measured_mbit(communicator, window, first[host], first[(host + 1) % where.hosts]));
  struct Told {
    char name[64];
    double mbit;
  } mine{};
  const Port port = fastest_port();
  port.name.copy(mine.name, sizeof mine.name - 1);
  mine.mbit = port.mbit;
  const auto ports = gather_values(communicator, std::vector<Told>{mine});
  // A slow link spoils what its host sends and what it receives, a slow neighbour only one of them.
  std::vector<HostLink> links;
  for (int host = 0; host < where.hosts; ++host) {
    const Told& its = ports[first[host]][0];
    const double to_me = to_next[(host + where.hosts - 1) % where.hosts];
    links.push_back(
        {where.host_name[first[host]], std::max(to_me, to_next[host]), {its.name, its.mbit}});
  }
  return links;
}

std::string describe(std::span<const HostLink> links) {
  std::vector<HostLink> slowest(links.begin(), links.end());
  std::ranges::stable_sort(slowest, {}, &HostLink::mbit);
  slowest.resize(std::min(slowest.size(), kShown));
  std::string text;
  for (const HostLink& link : slowest)
    text += fmt::format(
        "{}{} {:.0f}{}", text.empty() ? "" : ", ", link.host, link.mbit,
        link.port.mbit > 0 ? fmt::format(" ({}: {:.0f})", link.port.name, link.port.mbit) : "");
  return fmt::format("links between hosts, measured, in Mbit/s{}: {}",
                     links.size() > kShown ? fmt::format(", the slowest of {} (median {:.0f})",
                                                         links.size(), median_mbit(links))
                                           : "",
                     text);
}

std::vector<std::string> link_warnings(std::span<const HostLink> links,
                                       const std::string& backend) {
  std::vector<std::string> warnings;
  for (const HostLink& link : links) {
    if (link.mbit < kSlowLink * median_mbit(links))
      warnings.push_back(
          fmt::format("the link of host {} gives {:.0f} Mbit/s, those of others {:.0f}: a port "
                      "negotiated down, a bad cable, or other traffic",
                      link.host, link.mbit, median_mbit(links)));
    if (link.mbit < kSlowPort * link.port.mbit)
      warnings.push_back(fmt::format(
          "host {} has port {} of {:.0f} Mbit/s, but its link gives {:.0f}: {}", link.host,
          link.port.name, link.port.mbit, link.mbit,
          backend == "nccl"
              ? "NCCL_DEBUG=INFO tells what NCCL uses (NCCL_IB_HCA, NCCL_SOCKET_IFNAME choose)"
              : "MPI may use another network or TCP instead of RDMA; mpirun --mca "
                "btl_base_verbose 30 tells, --mca btl_tcp_if_include chooses"));
  }
  return warnings;
}

}  // namespace lockstep
