// What every CPU kernel stands on: runs of contiguous elements read as fp32 and written back as
// fp32 or bf16, and scratch memory. Kernels therefore exist once, in fp32, and conversion happens
// at their edges on pieces that stay in cache. Read next: elementwise.cpp, norm.cpp.
#pragma once

#include <algorithm>
#include <memory>

#include "core/parallel.h"
#include "core/scratch.h"
#include "core/tensor.h"

namespace lockstep {

inline void convert(const bf16* x, float* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = to_float(x[i]);
}
inline void convert(const float* x, bf16* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = to_bf16(x[i]);
}

// Elements of an fp32 or bf16 tensor, addressed by their offset from its first element.
class Source {
 public:
  explicit Source(const Tensor& t) : data_(t.raw()), narrow_(t.dtype() == DType::bf16) {}

  // n contiguous elements: the memory itself if it is fp32, else converted into `buffer` [n].
  const float* read(int64_t offset, int64_t n, float* buffer) const {
    if (!narrow_) return static_cast<const float*>(data_) + offset;
    convert(static_cast<const bf16*>(data_) + offset, buffer, n);
    return buffer;
  }
  const char* address(int64_t offset) const {
    return static_cast<const char*>(data_) + offset * element_bytes();
  }
  int64_t element_bytes() const { return narrow_ ? sizeof(bf16) : sizeof(float); }
  float at(int64_t offset) const {
    return narrow_ ? to_float(static_cast<const bf16*>(data_)[offset])
                   : static_cast<const float*>(data_)[offset];
  }

 private:
  const void* data_;
  bool narrow_;
};

// Where results go: rounded if the tensor is bf16, added to what is there if `accumulate`.
class Sink {
 public:
  explicit Sink(const Tensor& t, bool accumulate = false)
      : data_(t.raw()), narrow_(t.dtype() == DType::bf16), accumulate_(accumulate) {}

  void write(const float* x, int64_t offset, int64_t n) const {
    if (narrow_)
      put(x, static_cast<bf16*>(data_) + offset, n);
    else
      put(x, static_cast<float*>(data_) + offset, n);
  }
  void write(float x, int64_t offset) const { write(&x, offset, 1); }
  const char* address(int64_t offset) const {
    return static_cast<const char*>(data_) + offset * element_bytes();
  }
  int64_t element_bytes() const { return narrow_ ? sizeof(bf16) : sizeof(float); }

 private:
  template <class T>
  void put(const float* x, T* y, int64_t n) const {
    if (accumulate_) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) y[i] = from_float<T>(to_float(y[i]) + x[i]);
    } else {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) y[i] = from_float<T>(x[i]);
    }
  }

  void* data_;
  bool narrow_, accumulate_;
};

// Asks for memory that will be read or written soon; never waits.
inline void prefetch(const char* first, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(first + i, 0, 2);
}
// The same for n elements of a Source or Sink.
template <class Operand>
void prefetch(const Operand& x, int64_t offset, int64_t n) {
  prefetch(x.address(offset), n * x.element_bytes());
}

// Rows that are needed soon and that the processor does not see coming, asked for a few at a time
// between products: more at once than the first-level cache can wait for stalls everything.
class Ahead {
 public:
  void start() { runs_ = next_ = 0; }
  // Rows of n elements, `step` elements apart, that a Source will read or a Sink write.
  template <class Operand>
  void add(const Operand& x, int64_t offset, int64_t step, int64_t rows, int64_t n) {
    add(x.address(offset), x.element_bytes(), step, rows, n);
  }
  void add(const bf16* x, int64_t step, int64_t rows, int64_t n) {
    add(reinterpret_cast<const char*>(x), sizeof(bf16), step, rows, n);
  }
  void some(int rows) {
    for (int i = 0; i < rows && next_ < runs_; ++i) {
      Run& run = run_[next_];
      prefetch(run.row, run.bytes);
      run.row += run.step;
      if (--run.rows == 0) ++next_;
    }
  }

 private:
  struct Run {
    const char* row;
    int64_t step, rows, bytes;
  };
  void add(const char* first, int64_t size, int64_t step, int64_t rows, int64_t n) {
    if (rows > 0) run_[runs_++] = {first, step * size, rows, n * size};
  }

  Run run_[8];
  int runs_ = 0, next_ = 0;
};

// `count` rows of `width` floats for each thread, every one 64-byte aligned.
class ThreadRows {
 public:
  ThreadRows(int64_t count, int64_t width)
      : count_(count), width_((width + 15) / 16 * 16), memory_(num_threads() * count_ * width_) {}
  float* operator[](int64_t i) const {
    return memory_.data() + (thread_index() * count_ + i) * width_;
  }

 private:
  int64_t count_, width_;
  Scratch<float> memory_;
};

// Rows are handed to threads in pieces of this many; sums over rows are taken per piece, then over
// pieces in order, so they do not depend on the number of threads.
constexpr int64_t rows_per_piece = 64;

}  // namespace lockstep
