// The orders in which tests let threads and blocks run. Read next: kernels_test.cpp.
#pragma once

#include <cuda_runtime.h>

namespace lockstep {

// body(order) for each order in which threads and blocks can run.
template <class Body>
void for_each_order(Body&& body) {
  for (int order = 0; order < 5; ++order) {
    using cuda_on_cpu::Order;
    cuda_on_cpu::options.order = order == 0   ? Order::forward
                                 : order == 1 ? Order::reverse
                                              : Order::random;
    cuda_on_cpu::options.seed = static_cast<uint64_t>(order);
    body(order);
  }
}

}  // namespace lockstep
