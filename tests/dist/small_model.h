// A model for tests of data parallelism: small, and awkward. Parameters of one, of odd and of more
// than two cells' elements, in fp32 and bf16, one used at both ends of the graph, one unused.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "core/ops.h"

namespace lockstep {

// Numbers in [-1, 1), a function of the seed.
inline Tensor random_tensor(Shape shape, uint32_t seed) {
  std::minstd_rand random(seed);
  random.discard(5);
  std::vector<float> values(numel(shape));
  for (float& value : values) value = static_cast<float>(random() % 20001) / 10000.0f - 1.0f;
  return Tensor::from(values, std::move(shape));
}

class SmallModel {
 public:
  static constexpr int64_t width = 16, inner = 601, vocabulary = 37, rows = 5;

  SmallModel() {
    table_ = parameter("table", {vocabulary, width});
    w1_ = parameter("w1", {inner, width});
    b1_ = parameter("b1", {inner});
    w2_ = parameter("w2", {width, inner}, DType::bf16);
    unused_ = parameter("unused", {5});
    gain_ = parameter("gain", {1}, DType::bf16);
  }

  const std::vector<NamedTensor>& parameters() const { return parameters_; }

  // The loss on data that depend on rank, step and micro step.
  Tensor loss(int rank, int64_t step, int64_t micro) const {
    const auto seed = static_cast<uint32_t>(1000 * step + 100 * micro + rank);
    std::vector<int32_t> ids(rows);
    for (int64_t i = 0; i < rows; ++i)
      ids[i] = static_cast<int32_t>((seed * 7 + i * i) % vocabulary);
    const Tensor x = embedding(table_, Tensor::from(ids, {rows}));
    const Tensor h = tanh(linear(x, w1_, b1_));
    const Tensor y = mul(linear(h, cast(w2_, DType::f32)), cast(gain_, DType::f32));
    const Tensor logits = linear(y, table_);  // tied
    return sum(mul(square(logits), random_tensor({rows, vocabulary}, seed)));
  }

 private:
  Tensor parameter(const std::string& name, Shape shape, DType dtype = DType::f32) {
    Tensor t = cast(random_tensor(std::move(shape), 17 + parameters_.size()), dtype);
    parameters_.push_back({name, t.set_requires_grad(true)});
    return t;
  }

  std::vector<NamedTensor> parameters_;
  Tensor table_, w1_, b1_, w2_, unused_, gain_;
};

}  // namespace lockstep
