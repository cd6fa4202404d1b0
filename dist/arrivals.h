// Memory of the device for parts that arrive, from the communication thread's allocator: in the
// order of its stream, so it may be given back when what reads it is queued. Read next:
// host_staged.cpp.
#pragma once

#include <algorithm>
#include <atomic>
#include <span>
#include <vector>

#include "core/scratch.h"

namespace lockstep {

class Arrivals {
 public:
  // Each begins where kernels like it. `most`: bytes of any so far.
  Arrivals(std::span<const size_t> bytes, std::atomic<size_t>& most) : memory_(total(bytes)) {
    most = std::max<size_t>(most, total(bytes));
    std::byte* at = memory_.data();
    for (size_t b : bytes) {
      places_.push_back({at, b});
      at += aligned(b);
    }
  }
  std::vector<std::span<std::byte>>& places() { return places_; }

 private:
  static size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }
  static int64_t total(std::span<const size_t> bytes) {
    size_t sum = 0;
    for (size_t b : bytes) sum += aligned(b);
    return static_cast<int64_t>(sum);
  }

  Scratch<std::byte> memory_;
  std::vector<std::span<std::byte>> places_;
};

}  // namespace lockstep
