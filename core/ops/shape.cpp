// Ops that move or rename elements. Read next: linear.cpp.
#include "core/ops/shape.h"

#include <algorithm>
#include <numeric>

#include "core/ops/common.h"

namespace lockstep {

namespace {

// The view with x's dimensions in another order, outside the graph.
Tensor permuted(const Tensor& x, const std::vector<int64_t>& order) {
  Shape shape(order.size()), strides(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    shape[i] = x.shape()[order[i]];
    strides[i] = x.strides()[order[i]];
  }
  return x.view(std::move(shape), std::move(strides), x.offset());
}

// Elements begin..end-1 of dimension `at`, outside the graph.
Tensor part(const Tensor& x, int64_t at, int64_t begin, int64_t end) {
  Shape shape = x.shape();
  shape[at] = end - begin;
  return x.view(std::move(shape), x.strides(), x.offset() + begin * x.strides()[at]);
}

Shape resolved(const Tensor& x, Shape shape) {
  const auto rest = std::find(shape.begin(), shape.end(), -1);
  if (rest != shape.end()) {
    *rest = 1;
    const int64_t known = numel(shape);
    check(known > 0 && x.numel() % known == 0, "[reshape] {} does not divide by {}", to_string(x),
          to_string(shape));
    *rest = x.numel() / known;
  }
  check(numel(shape) == x.numel(), "[reshape] {} as {}; the numbers of elements must be equal",
        to_string(x), to_string(shape));
  return shape;
}

}  // namespace

Tensor reshape(const Tensor& x, Shape shape) {
  return record("reshape", compact(x).view(resolved(x, std::move(shape))), {x},
                [input = x.shape()](const Tensor& dy, Grads& grads) {
                  grads[0].add(compact(dy).view(input));
                });
}

Tensor transpose(const Tensor& x, int dim_a, int dim_b) {
  std::vector<int> order(x.ndim());
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[axis("transpose", x, dim_a)], order[axis("transpose", x, dim_b)]);
  return permute(x, order);
}

Tensor permute(const Tensor& x, const std::vector<int>& order) {
  std::vector<int64_t> forward, inverse(x.ndim(), -1);
  for (int d : order) forward.push_back(axis("permute", x, d));
  for (size_t i = 0; i < forward.size(); ++i) inverse[forward[i]] = static_cast<int64_t>(i);
  check(static_cast<int>(order.size()) == x.ndim() && std::ranges::count(inverse, -1) == 0,
        "[permute] order [{}] of {}; each dimension once is right", fmt::join(order, ", "),
        to_string(x));
  return record("permute", permuted(x, forward), {x},
                [inverse](const Tensor& dy, Grads& grads) { grads[0].add(permuted(dy, inverse)); });
}

Tensor slice(const Tensor& x, int dim, int64_t begin, int64_t end) {
  const int64_t at = axis("slice", x, dim);
  check(0 <= begin && begin <= end && end <= x.shape()[at], "[slice] {}..{} of dimension {} of {}",
        begin, end, dim, to_string(x));
  return record("slice", part(x, at, begin, end), {x}, [=](const Tensor& dy, Grads& grads) {
    grads[0].write([&](Tensor& dx, bool accumulate) {
      if (!accumulate) backend().fill(dx, 0.0f);
      Tensor window = part(dx, at, begin, end);
      backend().copy(dy, window, accumulate);
    });
  });
}

Tensor expand(const Tensor& x, const Shape& shape) {
  bool fits = x.shape().size() <= shape.size();
  for (size_t i = 0; fits && i < x.shape().size(); ++i) {
    const int64_t have = x.shape()[x.shape().size() - 1 - i], want = shape[shape.size() - 1 - i];
    fits = have == want || have == 1;
  }
  check(fits, "[expand] {} to {}; sizes must be equal or 1, aligned at the right", to_string(x),
        to_string(shape));
  return record("expand", repeated(x, shape), {x}, [](const Tensor& dy, Grads& grads) {
    grads[0].write([&](Tensor& dx, bool accumulate) { sum_repeats(dy, dx, accumulate); });
  });
}

Tensor cat(std::initializer_list<Tensor> tensors, int dim) {
  return cat(std::span(tensors.begin(), tensors.size()), dim);
}

Tensor cat(std::span<const Tensor> tensors, int dim) {
  check(!tensors.empty(), "[cat] of no tensors");
  const Tensor& first = tensors.front();
  const int64_t at = axis("cat", first, dim);
  Shape shape = first.shape();
  std::vector<int64_t> starts{0};
  for (const Tensor& t : tensors) {
    Shape other = t.shape();
    if (t.ndim() == first.ndim()) other[at] = first.shape()[at];
    check(other == first.shape() && t.dtype() == first.dtype(),
          "[cat] {} with {} along dimension {}; types and all other sizes must be equal",
          to_string(first), to_string(t), dim);
    starts.push_back(starts.back() + t.shape()[at]);
  }
  shape[at] = starts.back();
  Tensor y = Tensor::empty(std::move(shape), first.dtype());
  for (size_t i = 0; i < tensors.size(); ++i) {
    Tensor window = part(y, at, starts[i], starts[i + 1]);
    backend().copy(tensors[i], window, false);
  }
  return record("cat", y, tensors, [at, starts](const Tensor& dy, Grads& grads) {
    for (size_t i = 0; i + 1 < starts.size(); ++i)
      grads[static_cast<int>(i)].add(part(dy, at, starts[i], starts[i + 1]));
  });
}

Tensor contiguous(const Tensor& x) {
  if (x.contiguous()) return x;
  return record("contiguous", compact(x), {x},
                [](const Tensor& dy, Grads& grads) { grads[0].add(dy); });
}

}  // namespace lockstep
