// What is measured between hosts and what is said about it; ports from the kernel's files as they
// look.
#include "dist/links.h"

#include <gtest/gtest.h>

#include "dist/local.h"
#include "tests/file_test_util.h"

namespace lockstep {
namespace {

class Ports : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const { folder_.write(name, text); }
  Port fastest() const { return fastest_port(folder_.path()); }
  TempFolder folder_;
};

TEST_F(Ports, TheFastestThatIsUpAndOfHardware) {
  EXPECT_EQ(fastest().name, "");
  write("sys/class/net/lo/speed", "99999\n");
  write("sys/class/net/lo/operstate", "up\n");
  EXPECT_EQ(fastest().name, "") << "no device";
  write("sys/class/net/eth0/speed", "1000\n");
  write("sys/class/net/eth0/operstate", "up\n");
  write("sys/class/net/eth0/device/vendor", "0x15b3\n");
  write("sys/class/net/eth1/speed", "25000\n");
  write("sys/class/net/eth1/operstate", "down\n");
  write("sys/class/net/eth1/device/vendor", "0x15b3\n");
  write("sys/class/net/eth2/speed", "-1\n");
  write("sys/class/net/eth2/operstate", "up\n");
  write("sys/class/net/eth2/device/vendor", "0x15b3\n");
  EXPECT_EQ(fastest().name, "eth0");
  EXPECT_EQ(fastest().mbit, 1000);
  write("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
  write("sys/class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)\n");
  EXPECT_EQ(fastest().name, "eth0");
  write("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
  EXPECT_EQ(fastest().name, "mlx5_0");
  EXPECT_EQ(fastest().mbit, 200000);
}

TEST(Links, AreMeasuredBetweenHostsOnly) {
  run_local(2, {}, [](Communicator& c) { EXPECT_TRUE(measure_links(c).empty()); });
  run_local(5, {.ranks_per_host = 2}, [](Communicator& c) {
    const auto links = measure_links(c);
    ASSERT_EQ(links.size(), 3u);
    for (const HostLink& link : links) {
      EXPECT_EQ(link.host, c.topology().host_name[2 * (&link - links.data())]);
      EXPECT_GT(link.mbit, 1);
    }
  });
}

TEST(Links, AHostThatIsSlowerThanTheOthersIsNamed) {
  const std::vector<HostLink> links = {
      {"a", 940, {"eth0", 1000}}, {"b", 94, {}}, {"c", 930, {"eth0", 1000}}};
  EXPECT_EQ(describe(links),
            "links between hosts, measured, in Mbit/s: b 94, c 930 (eth0: 1000), a 940 (eth0: "
            "1000)");
  const auto warnings = link_warnings(links, "mpi");
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(
      warnings[0],
      "the link of host b gives 94 Mbit/s, those of others 930: a port negotiated down, a bad "
      "cable, or other traffic");
}

TEST(Links, APortThatIsNotUsedIsNamed) {
  const std::vector<HostLink> links = {{"a", 9400, {"mlx5_0", 100000}},
                                       {"b", 9400, {"eth0", 10000}}};
  const auto warnings = link_warnings(links, "mpi");
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0],
            "host a has port mlx5_0 of 100000 Mbit/s, but its link gives 9400: MPI may use another "
            "network or TCP instead of RDMA; mpirun --mca btl_base_verbose 30 tells, --mca "
            "btl_tcp_if_include chooses");
  EXPECT_NE(link_warnings(links, "nccl")[0].find("NCCL_IB_HCA"), std::string::npos);
}

TEST(Links, OfManyHostsTheSlowestAreShown) {
  std::vector<HostLink> links;
  for (int i = 0; i < 9; ++i) links.push_back({fmt::format("h{}", i), 1000.0 - i, {}});
  EXPECT_EQ(describe(links),
            "links between hosts, measured, in Mbit/s, the slowest of 9 (median 996): h8 992, h7 "
            "993, h6 994, h5 995");
  EXPECT_TRUE(link_warnings(links, "mpi").empty());
}

}  // namespace
}  // namespace lockstep
