// How the streams of the pretended module run, from the environment of the program that loads it.
#include <cuda_runtime.h>

namespace {

[[maybe_unused]] const bool read = [] {
  if (const char* seed = std::getenv("CUDA_ON_CPU_STREAMS"))
    cuda_on_cpu::streams = {
        .queued = true, .seed = std::strtoull(seed, nullptr, 10), .without = {}};
  if (const char* edge = std::getenv("CUDA_ON_CPU_WITHOUT")) cuda_on_cpu::streams.without = edge;
  if (const char* count = std::getenv("CUDA_ON_CPU_DEVICES"))
    cuda_on_cpu::device.count = std::atoi(count);
  return true;
}();

}  // namespace
