// The step's scalars where kernels read them. The host keeps values of its own and writes them here
// in the order of the kernels, so preparing step t + 1 cannot change what step t still reads. Read
// next: backend.h.
#pragma once

#include "core/allocator.h"
#include "core/step_scalars.h"

namespace lockstep {

class StepBuffer {
 public:
  StepBuffer()
      : storage_(Allocator::current().allocate(sizeof(StepScalars), Category::activations)) {}

  // Kernels that are queued from now on see `now`.
  void write(const StepScalars& now) {
    storage_->memory().write(storage_->data(), &now, sizeof now);
  }

  // To be handed to kernels, and read by them alone.
  const StepScalars& for_kernels() const {
    return *static_cast<const StepScalars*>(storage_->data());
  }

 private:
  std::shared_ptr<Storage> storage_;
};

}  // namespace lockstep
