// What a bucket's exchange leaves from one step to the next: residuals of lossy codecs, momenta.
// What is added to what, and when, is the exchange's matter. Read next: accumulator.h.
#pragma once

#include <utility>

#include "core/backend.h"
#include "core/tensor.h"

namespace lockstep {

// What one step leaves to the next, by element of some layout: that of the last committed step, and
// that of the step under way, which replaces it when it is committed.
class Carried {
 public:
  void allocate(int64_t elements) {
    CategoryScope scope(Category::buffers);
    committed_ = Tensor::zeros({elements});
    pending_ = Tensor::zeros({elements});
  }
  bool kept() const { return committed_.defined(); }
  // Adds it to x, which is [count] at `offset` of the layout.
  void add_to(float* x, int64_t offset, int64_t count, bool first) const {
    const float* rest = (first ? committed_ : pending_).data<float>() + offset;
    backend().add(rest, x, count);
  }
  // x, a gradient, becomes its share of the momentum; past steps' share is the first exchange's.
  void average(float decay, float* x, int64_t offset, int64_t count, bool first) {
    float* next = pending(offset);
    backend().average(decay, first ? committed_.data<float>() + offset : nullptr, x, count);
    if (first)
      backend().move(x, next, count * sizeof(float));
    else
      backend().add(x, next, count);
  }
  float* pending(int64_t offset) { return pending_.data<float>() + offset; }
  void commit() { std::swap(committed_, pending_); }
  const Tensor& committed() const { return committed_; }

 private:
  Tensor committed_, pending_;
};

}  // namespace lockstep
