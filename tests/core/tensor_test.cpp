// Views: which elements they show, and what is refused.
#include <gtest/gtest.h>

#include <numeric>

#include "core/tensor.h"
#include "tests/core/expect_error.h"

namespace lockstep {
namespace {

using Values = std::vector<float>;

Tensor counted(Shape shape) {
  Values values(numel(shape));
  std::iota(values.begin(), values.end(), 0.0f);
  return Tensor::from(values, std::move(shape));
}

TEST(Tensor, ShapesAndStrides) {
  const Tensor t = counted({2, 3, 4});
  EXPECT_EQ(t.strides(), (Shape{12, 4, 1}));
  EXPECT_EQ(t.numel(), 24);
  EXPECT_EQ(t.bytes(), 96u);
  EXPECT_EQ(t.dim(-1), 4);
  EXPECT_EQ(to_string(t), "f32[2, 3, 4]");
  EXPECT_EQ(to_string(Tensor()), "undefined");
  EXPECT_EQ(to_string(Tensor::empty({}, DType::bf16)), "bf16[]");
  EXPECT_EQ(Tensor::empty({}).numel(), 1);
}

TEST(Tensor, ViewsShareElements) {
  Tensor t = counted({2, 3});
  EXPECT_EQ(t.transposed().shape(), (Shape{3, 2}));
  EXPECT_EQ(t.transposed().to_vector<float>(), (Values{0, 3, 1, 4, 2, 5}));
  EXPECT_FALSE(t.transposed().contiguous());
  EXPECT_TRUE(t.transposed().transposed().contiguous());
  EXPECT_EQ(t.rows(1, 2).to_vector<float>(), (Values{3, 4, 5}));
  EXPECT_EQ(t.view({3, 2}).to_vector<float>(), t.to_vector<float>());
  EXPECT_EQ(t.view({2, 2}, {3, 2}, 0).to_vector<float>(), (Values{0, 2, 3, 5}));
  t.view({6}).data<float>()[4] = -1;
  EXPECT_EQ(t.rows(1, 2).to_vector<float>(), (Values{3, -1, 5}));
  EXPECT_TRUE(counted({1, 3}).transposed().contiguous());  // sizes of 1 have no stride
}

TEST(Tensor, OverPartOfAStorage) {
  const Tensor t = counted({8});
  EXPECT_EQ(Tensor::over(t.storage(), 2, {2, 2}, DType::f32).to_vector<float>(),
            (Values{2, 3, 4, 5}));
  EXPECT_EQ(Tensor::over(t.storage(), 4, {4}, DType::f32).rows(1, 3).offset(), 5);
  EXPECT_ERROR(Tensor::over(t.storage(), 6, {3}, DType::f32), Exit::internal,
               "[tensor] f32[3] at 6 ends at byte 36 of 32");
}

TEST(Tensor, HandlesAreShallow) {
  const Tensor a = Tensor::zeros({1});
  const Tensor b = a;
  b.data<float>()[0] = 5;
  EXPECT_EQ(a.item<float>(), 5);
  EXPECT_FALSE(Tensor().defined());
  EXPECT_FALSE(Tensor().requires_grad());
}

TEST(Tensor, Misuse) {
  const Tensor t = counted({2, 3});
  EXPECT_ERROR(t.data<bf16>(), Exit::internal, "[tensor] data<bf16>() of f32[2, 3]");
  EXPECT_ERROR(t.item<float>(), Exit::internal,
               "[tensor] item() of f32[2, 3]; one element is right");
  EXPECT_ERROR(t.dim(2), Exit::internal, "[tensor] dimension 2 of f32[2, 3]");
  EXPECT_ERROR(t.dim(-3), Exit::internal, "[tensor] dimension -3 of f32[2, 3]");
  EXPECT_ERROR(t.rows(1, 3), Exit::internal, "[rows] 1..3 of f32[2, 3]");
  EXPECT_ERROR(t.view({4}), Exit::internal, "[view] f32[2, 3] as [4]");
  EXPECT_ERROR(t.transposed().view({6}), Exit::internal,
               "[view] f32[3, 2] is not contiguous; copy it first");
  EXPECT_ERROR(counted({3}).transposed(), Exit::internal,
               "[transposed] f32[3] has fewer than two dimensions");
  EXPECT_ERROR(Tensor::from(Values{1, 2}, {3}), Exit::internal, "[tensor] 2 values for f32[3]");
  EXPECT_ERROR(Tensor::empty({2, -1}), Exit::internal, "[tensor] negative size in [2, -1]");
  EXPECT_ERROR(t.leaf(), Exit::internal, "[tensor] f32[2, 3] is not a leaf of the graph");
  EXPECT_ERROR(Tensor().raw(), Exit::internal, "[tensor] data of an undefined tensor");
}

}  // namespace
}  // namespace lockstep
