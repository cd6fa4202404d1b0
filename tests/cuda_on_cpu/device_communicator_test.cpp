// What DeviceCommunicator says beyond what the tests of tests/dist ask of every communicator.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "core/tensor.h"
#include "dist/local.h"
#include "tests/core/expect_error.h"
#include "tests/dist/worlds.h"

namespace lockstep {
namespace {

const LocalWorlds pair = {{2}, {0}};

TEST(DeviceWindow, OutOfMemoryNamesTheWindowAndWhatIsInUse) {
  cuda_on_cpu::device.free_bytes = size_t{1} << 20;
  on_worlds(
      [](Communicator& c) {
        const CategoryScope category(Category::gradients);
        const Tensor held = Tensor::zeros({256});
        const std::vector<size_t> parts(c.size(), size_t{1} << 20);
        EXPECT_ERROR(
            c.window("bucket 0", parts), Exit::config,
            "[memory] the GPU refused 2097152 bytes; a smaller train.micro_batch, "
            "train.recompute or a higher dist.zero_stage needs less (asked for window "
            "'bucket 0'; in use: parameters 0, gradients 1024, optimizer 0, activations 0, "
            "buffers 0, held 1024 bytes)");
      },
      pair);
  cuda_on_cpu::device.free_bytes = size_t{1} << 40;
}

TEST(DeviceCommunicator, WhatIsFoldedHasAsManyUsedBytesOnAllRanks) {
  on_worlds(
      [](Communicator& c) {
        const WindowPtr window = c.window("sums", std::vector<size_t>(c.size(), 64));
        window->fold_with(sum_floats);
        const std::vector<size_t> told(c.size(), told_by_part);
        EXPECT_ERROR(c.exchange(
                         window, [](auto) {}, told),
                     Exit::internal,
                     "[exchange] 'sums' is folded: its used bytes are the same on all ranks, not "
                     "told by parts");
      },
      pair);
}

// What windows have below them on the host is prepared with them.
TEST(DeviceCommunicator, WhatTheHostHandsOnHasItsMemoryFromTheStart) {
  run_local(4, {.ranks_per_host = 2}, [](Communicator& host) {
    rank_place().run(host, [&host](Communicator& c) {
      std::vector<WindowPtr> windows;
      for (const char* name : {"a", "b"})
        windows.push_back(c.window(name, std::vector<size_t>(4, 1000), Layout::own_part));
      const size_t before = host.arrival_bytes();
      c.prepare_to_gather(windows);
      EXPECT_EQ(host.arrival_bytes(), before + 2 * 1000) << "from one of the others for each";
      std::vector<Work> works;
      for (const WindowPtr& window : windows) works.push_back(c.gather(window, [](auto) {}));
      for (const Work& work : works) work.wait();
      EXPECT_EQ(host.arrival_bytes(), before + 2 * 1000);
      EXPECT_EQ(c.arrival_bytes(), 3u * 1024) << "aligned, on the device";
    });
  });
}

}  // namespace
}  // namespace lockstep
