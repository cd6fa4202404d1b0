// Every op's refusals: each says what was wrong with which values, and what would be right.
#include <gtest/gtest.h>

#include "core/ops.h"
#include "tests/core/expect_error.h"

namespace lockstep {
namespace {

Tensor f32(Shape shape) {
  return Tensor::zeros(std::move(shape));
}
Tensor half(Shape shape) {
  return Tensor::zeros(std::move(shape), DType::bf16);
}
Tensor ids(std::vector<int32_t> values) {
  const int64_t n = static_cast<int64_t>(values.size());
  return Tensor::from(values, {n});
}

#define EXPECT_REFUSED(op, text) EXPECT_ERROR(op, Exit::internal, text)

TEST(OpMessages, Elementwise) {
  EXPECT_REFUSED(exp(ids({1})), "[exp] x i32[1]; f32 or bf16 is right");
  EXPECT_REFUSED(exp(Tensor()), "[exp] x undefined; f32 or bf16 is right");
  EXPECT_REFUSED(add(f32({2, 3}), f32({4})),
                 "[add] a f32[2, 3], b f32[4]; sizes must be equal or 1, aligned at the right");
  EXPECT_REFUSED(mul(f32({3}), half({3})),
                 "[mul] a f32[3], b bf16[3]; the types must be equal, cast one");
  EXPECT_REFUSED(sub(f32({3}), ids({3})), "[sub] b i32[1]; f32 or bf16 is right");
}

TEST(OpMessages, Reduce) {
  EXPECT_REFUSED(sum(f32({2, 3}), {2}), "[sum] dimension 2 of f32[2, 3]");
  EXPECT_REFUSED(mean(f32({2, 3}), {1, -1}), "[mean] dimension -1 of f32[2, 3] is named twice");
  EXPECT_REFUSED(max(f32({2, 0})), "[max] f32[2, 0] has no elements to reduce");
  EXPECT_REFUSED(cast(f32({2}), DType::u8), "[cast] f32[2] to u8; f32 or bf16 is right");
}

TEST(OpMessages, Shape) {
  EXPECT_REFUSED(reshape(f32({2, 3}), {4, -1}), "[reshape] f32[2, 3] does not divide by [4, 1]");
  EXPECT_REFUSED(reshape(f32({2, 3}), {5}),
                 "[reshape] f32[2, 3] as [5]; the numbers of elements must be equal");
  EXPECT_REFUSED(transpose(f32({2, 3}), 0, 2), "[transpose] dimension 2 of f32[2, 3]");
  EXPECT_REFUSED(permute(f32({2, 3}), {0, 0}),
                 "[permute] order [0, 0] of f32[2, 3]; each dimension once is right");
  EXPECT_REFUSED(permute(f32({2, 3}), {0}),
                 "[permute] order [0] of f32[2, 3]; each dimension once is right");
  EXPECT_REFUSED(slice(f32({2, 3}), 1, 2, 4), "[slice] 2..4 of dimension 1 of f32[2, 3]");
  EXPECT_REFUSED(expand(f32({2, 3}), {3}),
                 "[expand] f32[2, 3] to [3]; sizes must be equal or 1, aligned at the right");
  EXPECT_REFUSED(cat({f32({2, 3}), f32({3, 3})}, 1),
                 "[cat] f32[2, 3] with f32[3, 3] along dimension 1; types and all other sizes must "
                 "be equal");
  EXPECT_REFUSED(cat({f32({2}), half({2})}, 0), "[cat] f32[2] with bf16[2] along dimension 0");
  EXPECT_REFUSED(cat(std::span<const Tensor>(), 0), "[cat] of no tensors");
}

TEST(OpMessages, Linear) {
  EXPECT_REFUSED(matmul(f32({2, 3}), f32({2, 3})),
                 "[matmul] a f32[2, 3], b f32[2, 3]; [m, k] and [k, n], or both with one equal "
                 "batch dimension, is right");
  EXPECT_REFUSED(matmul(f32({2, 3, 4}), f32({3, 4, 5})), "[matmul] a f32[2, 3, 4], b f32[3, 4, 5]");
  EXPECT_REFUSED(matmul(f32({2, 3, 4}), f32({4, 5})), "[matmul] a f32[2, 3, 4], b f32[4, 5]");
  EXPECT_REFUSED(matmul(f32({2, 3}), half({3, 2})),
                 "[matmul] a f32[2, 3], b bf16[3, 2]; the types must be equal, cast one");
  EXPECT_REFUSED(linear(f32({2, 3}), f32({4, 5})),
                 "[linear] x f32[2, 3], w f32[4, 5]; the last dimensions must be equal");
  EXPECT_REFUSED(linear(f32({2, 3}), f32({4, 3}), f32({3})),
                 "[linear] w f32[4, 3], b f32[3]; one bias per row of w is right");
  EXPECT_REFUSED(linear(f32({2, 3}), half({4, 3})),
                 "[linear] x f32[2, 3], w bf16[4, 3], b undefined; the types must be equal, cast "
                 "one");
  EXPECT_REFUSED(linear_gelu(f32({2, 3}), f32({4, 5}), f32({4}), GeluKind::erf),
                 "[linear_gelu] x f32[2, 3], w f32[4, 5]; the last dimensions must be equal");
  EXPECT_REFUSED(mlp_gelu(f32({2, 3}), f32({4, 3}), f32({4}), f32({3, 5}), {}, GeluKind::tanh),
                 "[mlp_gelu] x f32[2, 4], w f32[3, 5]; the last dimensions must be equal");
}

TEST(OpMessages, Layers) {
  EXPECT_ERROR(embedding(f32({5, 2}), ids({4, 5, 1})), Exit::data,
               "[embedding] id 5 at position 1 of i32[3]; 0..4 is right");
  EXPECT_ERROR(embedding(f32({5, 2}), ids({-1})), Exit::data,
               "[embedding] id -1 at position 0 of i32[1]; 0..4 is right");
  EXPECT_REFUSED(embedding(f32({5, 2}), f32({3})),
                 "[embedding] ids f32[3]; contiguous i32 is right");
  EXPECT_REFUSED(embedding(f32({5}), ids({0})),
                 "[embedding] table f32[5]; contiguous [v, d] is right");
  EXPECT_REFUSED(layer_norm(f32({2, 3}), f32({3}), f32({2})),
                 "[layer_norm] x f32[2, 3], parameter f32[2]; one of x's type per element of a row "
                 "is right");
  EXPECT_REFUSED(rms_norm(f32({2, 3}), half({3})), "[rms_norm] x f32[2, 3], parameter bf16[3]");
  EXPECT_REFUSED(softmax(f32({})), "[softmax] x f32[]; at least one dimension is right");
  EXPECT_REFUSED(swiglu(f32({2, 3})),
                 "[swiglu] x f32[2, 3]; gate and up, so an even last dimension, is right");
}

TEST(OpMessages, Heads) {
  const Heads heads{.n_head = 4, .n_kv_head = 2, .head_dim = 8};
  EXPECT_REFUSED(rope_tables(8, 3, 1e4), "[rope] max_len 8, head_dim 3, theta 10000");
  EXPECT_REFUSED(rope(f32({2, 3, 60}), rope_tables(8, 8, 1e4), heads),
                 "[rope] qkv f32[2, 3, 60]; [b, t, 64] is right for 4 query and 2 key heads of 8");
  EXPECT_REFUSED(rope(f32({2, 9, 64}), rope_tables(8, 8, 1e4), heads),
                 "[rope] qkv f32[2, 9, 64] of head_dim 8, tables f32[8, 4]; a row per position and "
                 "head_dim / 2 columns are right");
  EXPECT_REFUSED(causal_attention(f32({2, 3, 60}), heads),
                 "[attention] qkv f32[2, 3, 60]; [b, t, 64] is right for 4 query and 2 key heads "
                 "of 8");
  EXPECT_REFUSED(causal_attention(f32({2, 3, 60}), {.n_head = 4, .n_kv_head = 3, .head_dim = 8}),
                 "[attention] 4 query heads over 3 key heads; a multiple is right");
}

TEST(OpMessages, Dropout) {
  const StepScalars scalars;
  EXPECT_REFUSED(dropout(f32({2, 3}), 1.0f, {.scalars = &scalars}),
                 "[dropout] p 1; 0 <= p < 1 is right");
  EXPECT_REFUSED(dropout(f32({2, 3}), 0.5f, {}),
                 "[dropout] x f32[2, 3], no step scalars; a leading sample dimension and scalars "
                 "are right");
}

TEST(OpMessages, CrossEntropy) {
  EXPECT_REFUSED(linear_cross_entropy(f32({2, 3}), f32({5, 4}), ids({0, 1})),
                 "[cross_entropy] x f32[2, 3], w f32[5, 4]; [n, d] and [v, d] of one type are "
                 "right");
  EXPECT_REFUSED(linear_cross_entropy(f32({2, 3}), f32({5, 3}), ids({0})),
                 "[cross_entropy] x f32[2, 3], targets i32[1]; one i32 per row of x is right");
  EXPECT_ERROR(linear_cross_entropy(f32({2, 3}), f32({5, 3}), ids({0, 5})), Exit::data,
               "[cross_entropy] id 5 at position 1 of i32[2]; -1..4 is right: the data was made "
               "with another tokenizer, or model.vocab_size is too small");
  EXPECT_ERROR(linear_cross_entropy_rows(f32({1, 3}), f32({5, 3}), ids({-2})), Exit::data,
               "[cross_entropy] id -2 at position 0");
}

}  // namespace
}  // namespace lockstep
