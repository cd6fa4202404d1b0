// device: cuda on this machine. Where there is no driver, one line says so, be the module built or
// not; where there is one, tests/cuda_on_cpu/README.md says what to run.
#include <dlfcn.h>
#include <unistd.h>

#include <filesystem>

#include "core/cuda/open.h"
#include "core/load_module.h"
#include "tests/core/expect_error.h"

namespace lockstep {
namespace {

TEST(OpenCuda, SaysWhatIsMissing) {
  if (dlopen("libcuda.so.1", RTLD_LAZY)) GTEST_SKIP() << "a CUDA driver is installed";
  const std::string built = LOCKSTEP_CUDA_FOUND ? "driver not found" : "built without nvcc";
  EXPECT_ERROR(open_cuda(0), Exit::config, "no CUDA device: " + built);
  EXPECT_ERROR(open_cuda(0), Exit::config, "; use device: cpu");
}

// So an emulation's trainer finds its module where nothing was built for GPUs.
TEST(LoadModule, FindsOneBesideTheProgramAlthoughNoneWasBuilt) {
  std::string why = "none was built";
  EXPECT_EQ(load_module("absent.so", "", why), nullptr);
  EXPECT_EQ(why, "none was built");
  Dl_info any{};
  ASSERT_NE(dladdr(reinterpret_cast<void*>(&dlopen), &any), 0);
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe"),
                              link = program.parent_path() / fmt::format("beside{}.so", getpid());
  std::filesystem::create_symlink(std::filesystem::canonical(any.dli_fname), link);
  EXPECT_NE(load_module(link.filename(), "", why), nullptr) << why;
  std::filesystem::remove(link);
}

}  // namespace
}  // namespace lockstep
