// Training over pretend hosts (README.md): the bits are those of one host, a cut link ends the run
// and loses nothing, and the bytes in the metrics are those on the wire.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <sstream>

#include "tests/examples/tiny_run.h"

namespace lockstep {
namespace {

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "lacks '" << part << "':\n" << text;
}

// What was measured at start is what the links were made for: less TCP's headers, more at first.
void expect_link_rate(const std::string& log, double mbit) {
  const std::string line = "links between hosts, measured, in Mbit/s: ";
  const size_t at = log.find(line);
  ASSERT_NE(at, std::string::npos) << log;
  std::istringstream in(log.substr(at + line.size()));
  std::string host;
  double measured = 0;
  in >> host >> measured;
  EXPECT_GT(measured, 0.6 * mbit) << log;
  EXPECT_LT(measured, 1.3 * mbit) << log;
}

class Netlab : public TinyRun {
 protected:
  static std::string lab(const std::string& options) { return NETLAB " " + options + " -- "; }

  Trace trained_on_hosts(const std::string& name, const std::string& options, const Json& changes) {
    configure(name, changes, Launch::mpirun);
    ended_ = command(lab(options) + trainer() + " --config " + name + ".json");
    EXPECT_EQ(ended_.code, 0) << ended_.errors;
    return trace(name);
  }

  // What netlab counted at the link of a host.
  double bytes_sent(int host) const {
    const std::string line = "netlab: host " + std::to_string(host) + " sent ";
    const size_t at = ended_.errors.find(line);
    EXPECT_NE(at, std::string::npos) << ended_.errors;
    return at == std::string::npos ? 0 : std::atof(ended_.errors.c_str() + at + line.size());
  }

  Ended ended_;
};

TEST_F(Netlab, HostsHaveTheBitsOfOneHost) {
  for (int ranks_per_host : {1, 2}) {
    SCOPED_TRACE(ranks_per_host);
    const std::string suffix = std::to_string(ranks_per_host);
    const Trace one_host =
        trained("one" + suffix, {{"dist", {{"local_ranks", 2 * ranks_per_host}}}});
    const Trace two_hosts =
        trained_on_hosts("two" + suffix, "--hosts 2 --mbit 200 --ranks " + suffix, {});
    EXPECT_EQ(two_hosts.bits, one_host.bits);
    expect_contains(two_hosts.log, std::to_string(2 * ranks_per_host) + " ranks (mpi) on 2 hosts");
    expect_link_rate(two_hosts.log, 200);
  }
}

// Of two ranks, each sends the other's part of the gradients and the sum of its own: between them
// that is the size of the gradients, and the metrics say so. With two ranks per host a host sends
// as much: its sums of the parts owned elsewhere, and the sums of its own, or in stage 2 the
// parameters made of them (of the last step too, which the metrics do not see).
TEST_F(Netlab, WireBytesAreThoseOnTheWireAndCrossOnce) {
  double told = 0;
  for (const auto& [ranks_per_host, stage] : {std::pair(1, 0), std::pair(2, 0), std::pair(2, 2)}) {
    SCOPED_TRACE(fmt::format("{} ranks per host, stage {}", ranks_per_host, stage));
    const std::string suffix = std::to_string(ranks_per_host);
    const Trace run = trained_on_hosts(
        fmt::format("wire{}{}", ranks_per_host, stage), "--hosts 2 --mbit 500 --ranks " + suffix,
        {{"model", {{"d_model", 128}}},
         {"train", {{"steps", 20}}},
         {"dist", {{"zero_stage", stage}, {"accumulate", "local"}}}});
    double left = 0;  // the host, by rank 0 and by those that share it
    for (const auto& [t, step] : run.steps) {
      if (ranks_per_host == 1) told += step["wire_bytes"].get<double>();
      left += ranks_per_host * step["host_bytes"].get<double>();
    }
    EXPECT_GT(told, 20e6);
    EXPECT_NEAR(left / told, 1, 0.05);  // parts are even to within a cell
    // Beyond them: TCP's and Ethernet's headers, losses and norms, the start of MPI.
    const double at_start =
        2 * (4 << 20) + 2 * (256 << 10);  // measuring the links, both ways at most
    EXPECT_GT(bytes_sent(1) / told, 1.0);
    EXPECT_LT((bytes_sent(1) - at_start) / told, 1.05);
  }
}

// Both at once: a link that carries one direction at a time would take twice as long.
TEST_F(Netlab, AnAllReduceFillsTheLinkInBothDirections) {
  const Ended ended = command(lab("--hosts 2 --ranks 1 --mbit 200") + trainer() +
                              " bench comm -b 4M -e 4M -n 7 -w 1 --json comm.json");
  ASSERT_EQ(ended.code, 0) << ended.errors;
  const Json result = Json::parse(read_text(folder_ / "comm.json"));
  const double at_link_rate_us = 4 * 1048576 * 8 / 200.0;
  const double took_us = result.at("rows").at(0).at("ours").at("min_us");
  EXPECT_GT(took_us, at_link_rate_us);
  EXPECT_LT(took_us, 1.5 * at_link_rate_us);
}

TEST_F(Netlab, ACutLinkEndsTheRunAndLosesNothing) {
  const Json changes = {{"train", {{"steps", 60}}},
                        {"dist", {{"timeout_s", 2.0}}},
                        {"checkpoint", {{"every", 5}, {"resume", "auto"}}}};
  Json alone = changes;
  alone["dist"]["local_ranks"] = 2;
  const std::string bits = trained("whole", alone).bits;

  const std::string name = "cut" + std::to_string(getpid());
  configure("cut", changes, Launch::mpirun);
  const std::string train = trainer() + " --config cut.json";
  Process run(folder_.path(), lab("--hosts 2 --ranks 1 --mbit 20 --name " + name) + train);
  ASSERT_TRUE(run.wait_until([&] { return steps_done("cut") >= 12; }));
  EXPECT_EQ(command(NETLAB " cut " + name + " 2").code, 0);
  const auto cut = std::chrono::steady_clock::now();
  const Ended ended = run.wait();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - cut;
  // Whoever comes first: rank 0, after dist.timeout_s, or mpirun, after three lost keepalives.
  EXPECT_TRUE(ended.code == 75 || ended.code == 205) << ended.code << ended.errors;
  EXPECT_LT(took.count(), 20);
  expect_contains(trace("cut").log, " waited 2.0 s for rank 1 on host host2 in step ");
  EXPECT_LT(steps_done("cut"), 60);

  const Ended resumed = command(lab("--hosts 2 --ranks 1") + train);
  EXPECT_EQ(resumed.code, 0) << resumed.errors;
  expect_contains(trace("cut").log, "resumed from ");
  EXPECT_EQ(trace("cut").bits, bits);
}

TEST_F(Netlab, AFailingRankIsHeardOnTheOtherHost) {
  const Ended ended = command(lab("--hosts 2 --ranks 1") + FAILING_RANK " throw 20");
  EXPECT_EQ(ended.code, 65);
  expect_contains(ended.errors, "[dist] rank 1 on host host2 failed: [data] shard 7 is truncated");
}

TEST_F(Netlab, AStoppedRankIsNamed) {
  const Ended ended = command(lab("--hosts 2 --ranks 2") + FAILING_RANK " stop 2");
  EXPECT_EQ(ended.code, 75);
  expect_contains(ended.errors, " waited 2.0 s for rank 1 on host host1 in step 12 ");
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (std::system(NETLAB " check") != 0) return 77;
  return RUN_ALL_TESTS();
}
