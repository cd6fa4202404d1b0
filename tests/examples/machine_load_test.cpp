// When a figure is said to be that of a busy machine, from texts of /proc/stat.
#include "examples/machine_load.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "dist/local.h"

namespace lockstep {
namespace {

TEST(MachineLoad, ReadsTheFirstLine) {
  const auto tick = static_cast<double>(sysconf(_SC_CLK_TCK));
  const ProcessorTime time = parse_processor_time(
      "cpu  100 20 30 4000 50 6 7 80 9 1\ncpu0 1 2 3 4 5 6 7 8 9 1\nintr 12\n");
  EXPECT_DOUBLE_EQ(time.busy, (100 + 20 + 30 + 6 + 7) / tick);
  EXPECT_DOUBLE_EQ(time.stolen, 80 / tick);
  EXPECT_DOUBLE_EQ(time.idle, 4050 / tick);
}

TEST(MachineLoad, QuietUnlessOthersTookWhatWasThere) {
  EXPECT_EQ(load_warning({.busy = 20, .stolen = 0.1, .idle = 0}, 19.5, 10, "a"), "");
  EXPECT_EQ(load_warning({.busy = 10, .stolen = 0, .idle = 0}, 10, 5, "a"), "");
  // Others had 3 of 64 cores, but 29 were idle.
  EXPECT_EQ(load_warning({.busy = 350, .stolen = 0, .idle = 290}, 320, 10, "a"), "");
  EXPECT_EQ(load_warning({.busy = 19, .stolen = 1, .idle = 0}, 10, 10, "a"),
            "busy machine: on host a other programs had 0.9 and other guests 0.1 of 2 cores "
            "meanwhile; on a quiet one the figures would be better");
  EXPECT_NE(load_warning({.busy = 17, .stolen = 3, .idle = 0}, 17, 10, "a"), "");
  // Two ticks more or less would be a core more or less.
  EXPECT_EQ(load_warning({.busy = 0.1, .stolen = 0, .idle = 0.02}, 0.04, 0.04, "a"), "");
  EXPECT_NE(
      load_warning({.busy = 10, .stolen = 0, .idle = 0}, 5, 10, "a").find("of 1 core meanwhile"),
      std::string::npos);
}

// Ranks of one process count its time once: else a busy neighbour would be hidden by it.
TEST(MachineLoad, IsTheSameOnAllRanks) {
  std::vector<std::string> said(3);
  run_local(3, {}, [&](Communicator& c) {
    const MachineLoad load;
    said[c.rank()] = load.warning(c);
  });
  EXPECT_EQ(said[1], said[0]);
  EXPECT_EQ(said[2], said[0]);
}

}  // namespace
}  // namespace lockstep
