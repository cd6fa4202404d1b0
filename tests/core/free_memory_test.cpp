// What is left, from the kernel's files as they look in both versions of control groups.
#include "core/free_memory.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/allocator.h"
#include "tests/core/expect_error.h"
#include "tests/file_test_util.h"

namespace lockstep {
namespace {

class FreeMemory : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const { folder_.write(name, text); }
  size_t left() const { return free_memory(folder_.path()); }

  TempFolder folder_;
};

TEST_F(FreeMemory, IsWhatTheMachineHas) {
  EXPECT_EQ(left(), std::numeric_limits<size_t>::max());
  write("proc/meminfo", "MemTotal:  9000 kB\nMemAvailable:    5000 kB\nSwapFree:     100 kB\n");
  EXPECT_EQ(left(), 5100u * 1024);
}

TEST_F(FreeMemory, OrWhatAGroupOfVersion2Leaves) {
  write("proc/meminfo", "MemAvailable:    5000 kB\n");
  write("proc/self/cgroup", "0::/jobs/mine\n");
  write("sys/fs/cgroup/jobs/mine/memory.max", "max\n");
  write("sys/fs/cgroup/jobs/mine/memory.current", "7000\n");
  EXPECT_EQ(left(), 5000u * 1024) << "no limit";
  write("sys/fs/cgroup/jobs/memory.max", "1000000\n");
  write("sys/fs/cgroup/jobs/memory.current", "700000\n");
  EXPECT_EQ(left(), 300000u) << "a group above has one";
  write("sys/fs/cgroup/jobs/memory.stat", "anon 9\ninactive_file 100000\nactive_file 50000\n");
  EXPECT_EQ(left(), 450000u) << "the page cache can go";
  write("sys/fs/cgroup/jobs/mine/memory.max", "8000\n");
  EXPECT_EQ(left(), 1000u);
}

TEST_F(FreeMemory, OrOneOfVersion1) {
  write("proc/meminfo", "MemAvailable:    5000 kB\n");
  write("proc/self/cgroup", "9:cpu:/a\n4:memory:/only/the/host/knows\n0::/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1200000\n");
  write("sys/fs/cgroup/memory/memory.stat", "total_inactive_file 500000\n");
  EXPECT_EQ(left(), 300000u);
  write("sys/fs/cgroup/memory/memory.stat", "");
  EXPECT_EQ(left(), 0u) << "more than allowed";
}

// The kernel would promise it, and kill whoever uses it.
TEST(HostMemory, RefusesMoreThanThereIs) {
  const size_t left = free_memory();
  if (left == std::numeric_limits<size_t>::max()) GTEST_SKIP() << "this system does not tell";
  EXPECT_FALSE(fits_memory(left + left / 8));
  EXPECT_TRUE(fits_memory(1));
  Allocator a(host_memory());
  EXPECT_ERROR(a.allocate(left + left / 8, Category::activations), Exit::config,
               "a smaller train.micro_batch or model, train.recompute or a higher dist.zero_stage "
               "needs less (asked for activations; in use: ");
}

}  // namespace
}  // namespace lockstep
