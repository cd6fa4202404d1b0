// device: cuda on this machine. Where there is no driver, one line says so, be the module built or
// not; where there is one, tests/cuda_on_cpu/README.md says what to run.
#include <dlfcn.h>

#include "core/cuda/open.h"
#include "tests/core/expect_error.h"

namespace lockstep {
namespace {

TEST(OpenCuda, SaysWhatIsMissing) {
  if (dlopen("libcuda.so.1", RTLD_LAZY)) GTEST_SKIP() << "a CUDA driver is installed";
  const std::string built = LOCKSTEP_CUDA_FOUND ? "driver not found" : "built without nvcc";
  EXPECT_ERROR(open_cuda(0), Exit::config, "no CUDA device: " + built);
  EXPECT_ERROR(open_cuda(0), Exit::config, "; use device: cpu");
}

}  // namespace
}  // namespace lockstep
