// Tensor's bookkeeping: shapes, strides, views. Read next: autograd.h.
#include "core/tensor.h"

#include <algorithm>

#include "core/autograd.h"

namespace lockstep {

int64_t numel(const Shape& shape) {
  int64_t n = 1;
  for (int64_t d : shape) {
    check(d >= 0, "[tensor] negative size in {}", to_string(shape));
    n *= d;
  }
  return n;
}

std::string to_string(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string to_string(const Tensor& t) {
  return t.defined() ? name_of(t.dtype()) + to_string(t.shape()) : "undefined";
}

Shape contiguous_strides(const Shape& shape) {
  Shape strides(shape.size());
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0; step *= shape[i]) strides[i] = step;
  return strides;
}

Tensor Tensor::make(std::shared_ptr<Storage> storage, int64_t offset, Shape shape, Shape strides,
                    DType dtype, std::shared_ptr<Node> node) {
  const int64_t n = lockstep::numel(shape);
  bool contiguous = true;
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0; step *= shape[i])
    if (shape[i] != 1 && strides[i] != step) contiguous = false;
  Tensor t;
  t.impl_ =
      std::make_shared<Impl>(Impl{std::move(storage), offset, std::move(shape), std::move(strides),
                                  dtype, n, contiguous || n == 0, std::move(node)});
  return t;
}

Tensor Tensor::empty(Shape shape, DType dtype) {
  const size_t bytes = static_cast<size_t>(lockstep::numel(shape)) * size_of(dtype);
  Shape strides = contiguous_strides(shape);
  return make(Allocator::current().allocate(bytes, CategoryScope::current()), 0, std::move(shape),
              std::move(strides), dtype, nullptr);
}

Tensor Tensor::zeros(Shape shape, DType dtype) {
  Tensor t = empty(std::move(shape), dtype);
  t.storage()->memory().zero(t.raw(), t.bytes());
  return t;
}

Tensor Tensor::over(std::shared_ptr<Storage> storage, int64_t offset, Shape shape, DType dtype) {
  const size_t end = static_cast<size_t>(offset + lockstep::numel(shape)) * size_of(dtype);
  check(offset >= 0 && end <= storage->bytes(), "[tensor] {}{} at {} ends at byte {} of {}",
        name_of(dtype), to_string(shape), offset, end, storage->bytes());
  Shape strides = contiguous_strides(shape);
  return make(std::move(storage), offset, std::move(shape), std::move(strides), dtype, nullptr);
}

int64_t Tensor::dim(int i) const {
  const int at = i < 0 ? i + ndim() : i;
  check(at >= 0 && at < ndim(), "[tensor] dimension {} of {}", i, to_string(*this));
  return impl_->shape[at];
}

void* Tensor::raw() const {
  check(defined(), "[tensor] data of an undefined tensor");
  if (!impl_->storage->bound()) [[unlikely]]
    fail(Exit::internal, "[tensor] storage of {} is released; gather it first", to_string(*this));
  return static_cast<std::byte*>(impl_->storage->data()) +
         impl_->offset * static_cast<int64_t>(size_of(impl_->dtype));
}

void Tensor::copy_from_host(const void* values) const {
  check(contiguous(), "[tensor] {} is not contiguous; copy it first", to_string(*this));
  storage()->memory().write(raw(), values, bytes());
}

void Tensor::copy_to_host(void* values) const {
  check(contiguous(), "[tensor] {} is not contiguous; copy it first", to_string(*this));
  storage()->memory().read(values, raw(), bytes());
}

Tensor Tensor::view(Shape shape, Shape strides, int64_t offset) const {
  check(shape.size() == strides.size(), "[view] shape {} with strides {}", to_string(shape),
        to_string(strides));
  return make(impl_->storage, offset, std::move(shape), std::move(strides), dtype(), nullptr);
}

Tensor Tensor::view(Shape shape) const {
  check(contiguous(), "[view] {} is not contiguous; copy it first", to_string(*this));
  check(lockstep::numel(shape) == numel(), "[view] {} as {}", to_string(*this), to_string(shape));
  Shape strides = contiguous_strides(shape);
  return view(std::move(shape), std::move(strides), offset());
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  check(ndim() > 0 && 0 <= begin && begin <= end && end <= dim(0), "[rows] {}..{} of {}", begin,
        end, to_string(*this));
  Shape part = shape();
  part[0] = end - begin;
  return view(std::move(part), strides(), offset() + begin * strides()[0]);
}

Tensor Tensor::transposed() const {
  check(ndim() >= 2, "[transposed] {} has fewer than two dimensions", to_string(*this));
  Shape s = shape(), t = strides();
  std::swap(s[s.size() - 1], s[s.size() - 2]);
  std::swap(t[t.size() - 1], t[t.size() - 2]);
  return view(std::move(s), std::move(t), offset());
}

Tensor Tensor::detach() const {
  return with_node(nullptr);
}

Tensor Tensor::with_node(std::shared_ptr<Node> node) const {
  return make(storage(), offset(), shape(), strides(), dtype(), std::move(node));
}

Tensor& Tensor::set_requires_grad(bool on) {
  check(!impl_->node || impl_->node->is_leaf(), "[tensor] {} is the output of {}, not a leaf",
        to_string(*this), impl_->node ? impl_->node->op : "");
  if (on && !impl_->node)
    impl_->node = std::make_shared<Leaf>(shape(), dtype());
  else if (!on)
    impl_->node.reset();
  return *this;
}

Leaf& Tensor::leaf() const {
  check(requires_grad() && impl_->node->is_leaf(), "[tensor] {} is not a leaf of the graph",
        to_string(*this));
  return static_cast<Leaf&>(*impl_->node);
}

const Tensor& Tensor::grad() const {
  return leaf().grad;
}

void visit_bytes(const Tensor& t, const std::function<void(const void* piece, size_t)>& visit) {
  check(t.contiguous(), "[tensor] {} is not contiguous; copy it first", to_string(t));
  MemorySource& memory = t.storage()->memory();
  if (memory.on_host()) return visit(t.raw(), t.bytes());
  constexpr size_t most = size_t{16} << 20;
  std::vector<std::byte> piece(std::min(most, t.bytes()));
  for (size_t at = 0; at < t.bytes(); at += most) {
    const size_t bytes = std::min(most, t.bytes() - at);
    memory.read(piece.data(), static_cast<const std::byte*>(t.raw()) + at, bytes);
    visit(piece.data(), bytes);
  }
}

std::vector<int64_t> Tensor::element_offsets() const {
  std::vector<int64_t> offsets{0};
  for (int d = 0; d < ndim(); ++d) {
    std::vector<int64_t> finer;
    finer.reserve(offsets.size() * shape()[d]);
    for (int64_t o : offsets)
      for (int64_t i = 0; i < shape()[d]; ++i) finer.push_back(o + i * strides()[d]);
    offsets = std::move(finer);
  }
  return offsets;
}

}  // namespace lockstep
