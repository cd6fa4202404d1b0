// Tensor: a shape and strides over shared storage, and its place in the autograd graph.
// Copying a Tensor copies the handle, never the elements; const is shallow, as for a pointer. This
// file knows no arithmetic: ops are free functions in core/ops/. Read next: autograd.h.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/allocator.h"
#include "core/dtype.h"
#include "core/error.h"

namespace lockstep {

using Shape = std::vector<int64_t>;

int64_t numel(const Shape& shape);
std::string to_string(const Shape& shape);  // "[2, 3]"
Shape contiguous_strides(const Shape& shape);

struct Node;
struct Leaf;

class Tensor {
 public:
  Tensor() = default;  // undefined: no storage, only defined() and assignment are allowed

  // Uninitialised, contiguous, accounted to CategoryScope::current().
  static Tensor empty(Shape shape, DType dtype = DType::f32);
  static Tensor zeros(Shape shape, DType dtype = DType::f32);
  // Host data; the number of values must be that of the shape.
  template <class T>
  static Tensor from(const std::vector<T>& values, Shape shape);
  // A contiguous tensor over part of a storage; `offset` in elements.
  static Tensor over(std::shared_ptr<Storage> storage, int64_t offset, Shape shape, DType dtype);

  bool defined() const { return impl_ != nullptr; }
  const Shape& shape() const { return impl_->shape; }
  const Shape& strides() const { return impl_->strides; }  // in elements
  int ndim() const { return static_cast<int>(impl_->shape.size()); }
  int64_t dim(int i) const;  // negative counts from the end
  int64_t numel() const { return impl_->numel; }
  DType dtype() const { return impl_->dtype; }
  size_t bytes() const { return static_cast<size_t>(numel()) * size_of(dtype()); }
  bool contiguous() const { return impl_->contiguous; }
  const std::shared_ptr<Storage>& storage() const { return impl_->storage; }
  int64_t offset() const { return impl_->offset; }  // of the first element, in elements

  // Pointer to the first element. Error if T is not the element type or the storage is released.
  template <class T>
  T* data() const;
  void* raw() const;  // the same without the type

  // All elements of a contiguous tensor from and to the host, wherever they lie.
  void copy_from_host(const void* values) const;
  void copy_to_host(void* values) const;

  // Another view of the same elements, outside the graph (ops in core/ops/shape.h record
  // gradients).
  Tensor view(Shape shape, Shape strides, int64_t offset) const;
  Tensor view(Shape shape) const;                 // contiguous only
  Tensor rows(int64_t begin, int64_t end) const;  // part of the first dimension
  Tensor transposed() const;                      // last two dimensions swapped
  Tensor detach() const;                          // the same elements, outside the graph

  // Makes this tensor a leaf of the graph (a parameter) or takes it out again.
  Tensor& set_requires_grad(bool on);
  bool requires_grad() const { return impl_ && impl_->node != nullptr; }
  const std::shared_ptr<Node>& node() const { return impl_->node; }
  Leaf& leaf() const;          // error if this tensor is not a leaf
  const Tensor& grad() const;  // of a leaf; undefined before the first contribution

  // This tensor as output of `node` (used by record() only).
  Tensor with_node(std::shared_ptr<Node> node) const;

  template <class T>
  std::vector<T> to_vector() const;  // elements in row-major order, whatever the strides
  template <class T>
  T item() const;  // of a one-element tensor

 private:
  struct Impl {
    std::shared_ptr<Storage> storage;
    int64_t offset;
    Shape shape, strides;
    DType dtype;
    int64_t numel;
    bool contiguous;
    std::shared_ptr<Node> node;
  };
  static Tensor make(std::shared_ptr<Storage> storage, int64_t offset, Shape shape, Shape strides,
                     DType dtype, std::shared_ptr<Node> node);
  std::vector<int64_t> element_offsets() const;

  std::shared_ptr<Impl> impl_;
};

std::string to_string(const Tensor& t);  // "bf16[2, 3]", for messages

// The bytes of a contiguous tensor, in order, in pieces that lie on the host.
void visit_bytes(const Tensor& t, const std::function<void(const void* piece, size_t)>& visit);

// How modules, optimizers, the gradient exchange and checkpoints speak of parameters and their
// state.
struct NamedTensor {
  std::string name;
  Tensor tensor;
};

template <class T>
T* Tensor::data() const {
  if (dtype() != dtype_of<T>()) [[unlikely]]  // check() would format the message every time
    fail(Exit::internal, "[tensor] data<{}>() of {}", name_of(dtype_of<T>()), to_string(*this));
  return static_cast<T*>(raw());
}

template <class T>
Tensor Tensor::from(const std::vector<T>& values, Shape shape) {
  Tensor t = empty(std::move(shape), dtype_of<T>());
  check(t.numel() == static_cast<int64_t>(values.size()), "[tensor] {} values for {}",
        values.size(), to_string(t));
  t.copy_from_host(values.data());
  return t;
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  const T* p = data<T>();
  std::vector<T> values(static_cast<size_t>(numel()));
  if (contiguous()) {
    copy_to_host(values.data());
    return values;
  }
  const std::vector<int64_t> offsets = element_offsets();
  std::vector<T> all(static_cast<size_t>(*std::ranges::max_element(offsets) + 1));
  storage()->memory().read(all.data(), p, all.size() * sizeof(T));
  for (size_t i = 0; i < offsets.size(); ++i) values[i] = all[offsets[i]];
  return values;
}

template <class T>
T Tensor::item() const {
  check(numel() == 1, "[tensor] item() of {}; one element is right", to_string(*this));
  T value;
  storage()->memory().read(&value, data<T>(), sizeof value);
  return value;
}

}  // namespace lockstep
