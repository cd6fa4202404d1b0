// What the ops share: checks of types, layouts that kernels ask for, broadcasting. No arithmetic,
// nothing here is recorded in the graph. Read next: elementwise.h.
#pragma once

#include "core/autograd.h"
#include "core/backend.h"

namespace lockstep {

inline bool is_float(const Tensor& t) {
  return t.dtype() == DType::f32 || t.dtype() == DType::bf16;
}

// Error unless t is fp32 or bf16; `name` is the argument's, for the message.
inline void check_float(const char* op, const char* name, const Tensor& t) {
  check(t.defined() && is_float(t), "[{}] {} {}; f32 or bf16 is right", op, name, to_string(t));
}

inline Tensor empty_like(const Tensor& t) {
  return Tensor::empty(t.shape(), t.dtype());
}

// The same elements in row-major order: t itself where it is so already, else a copy.
inline Tensor compact(const Tensor& t) {
  if (t.contiguous()) return t;
  Tensor copy = empty_like(t);
  backend().copy(t, copy, false);
  return copy;
}

// [.., c] as [rows, c], compact.
inline Tensor as_rows(const Tensor& t) {
  const int64_t c = t.dim(-1);
  return compact(t).view({c == 0 ? 0 : t.numel() / c, c});
}

// Dimension `d` of t counted from the front; negative ones count from the end.
inline int64_t axis(const char* op, const Tensor& t, int64_t d) {
  const int64_t at = d < 0 ? d + t.ndim() : d;
  check(at >= 0 && at < t.ndim(), "[{}] dimension {} of {}", op, d, to_string(t));
  return at;
}

// The view of t in which size-1 and missing leading dimensions repeat (stride 0) to fill `shape`.
// The caller has checked that they can.
inline Tensor repeated(const Tensor& t, const Shape& shape) {
  Shape strides(shape.size(), 0);
  const size_t lead = shape.size() - t.shape().size();
  for (size_t i = lead; i < shape.size(); ++i)
    if (t.shape()[i - lead] == shape[i]) strides[i] = t.strides()[i - lead];
  return t.view(shape, std::move(strides), t.offset());
}

// The opposite: adds `wide` up to the shape of dst, which is repeated()'s argument. dst contiguous.
inline void sum_repeats(const Tensor& wide, const Tensor& dst, bool accumulate) {
  Shape padded(wide.shape().size() - dst.shape().size(), 1);
  padded.insert(padded.end(), dst.shape().begin(), dst.shape().end());
  Tensor out = dst.view(std::move(padded));
  backend().reduce(Reduction::sum, wide, out, accumulate);
}

// For kernels that write a parameter's gradient and so know only fp32: `kernel(dst, accumulate)`
// gets the slot's own buffer if that is fp32 (every parameter's is), else a temporary one.
template <class Kernel>
void write_f32(GradSlot slot, Kernel&& kernel) {
  slot.write([&](Tensor& dst, bool accumulate) {
    if (dst.dtype() == DType::f32) return kernel(dst, accumulate);
    Tensor wide = Tensor::empty(dst.shape());
    kernel(wide, false);
    backend().copy(wide, dst, accumulate);
  });
}

}  // namespace lockstep
