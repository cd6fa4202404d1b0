// Memory that lives as long as one kernel call. Read next: cpu/rows.h.
#pragma once

#include <memory>

#include "core/allocator.h"

namespace lockstep {

// From the rank's allocator: after the first step nothing is asked from the system. Take it before
// a parallel loop (worker threads have no allocator of their own). On a device it is given back
// when the kernel is queued, not when it has run: whoever gets the block next is queued behind it.
template <class T>
class Scratch {
 public:
  explicit Scratch(int64_t n)
      : storage_(
            Allocator::current().allocate(static_cast<size_t>(n) * sizeof(T), Category::buffers)) {}
  T* data() const { return static_cast<T*>(storage_->data()); }
  T& operator[](int64_t i) const { return data()[i]; }

 private:
  std::shared_ptr<Storage> storage_;
};

}  // namespace lockstep
