// The kernels that work on rows and on flat memory: the same bits for any number of threads, also
// where they add to what is there; and what the optimizer's kernels compute, against doubles.
#include "core/philox.h"
#include "tests/core/kernel_data.h"

namespace lockstep {
namespace {

using namespace test;

// Sizes that leave a rest in every piece, vector and buffer.
constexpr int64_t rows = 203, width = 77;

class KernelsRows : public ::testing::TestWithParam<DType> {
 protected:
  Tensor in(Shape shape, uint32_t seed) {
    return random_tensor(std::move(shape), GetParam(), seed);
  }
  Tensor f32(Shape shape, uint32_t seed) {
    return random_tensor(std::move(shape), DType::f32, seed);
  }
  Backend& kernels = backend();
};

TEST_P(KernelsRows, ElementwiseAndReductions) {
  const Tensor x = in({rows, width}, 1), dy = in({rows, width}, 2), row = in({width}, 3);
  expect_thread_independent(
      [&] {
        Tensor y = in({rows, width}, 4), d = f32({rows, width}, 5), sum = f32({1, width}, 6);
        Tensor total = f32({1, 1}, 7), bias = f32({width}, 8), dpre = in({rows, width}, 9);
        Tensor bias2 = f32({width}, 10);
        kernels.binary(Add(), x, row, y);
        kernels.unary_grad(GeluErf(), x, dy, d, true);
        Tensor turned = d.view({width, rows});
        kernels.copy(x.transposed(), turned, true);
        kernels.reduce(Reduction::sum, x, sum, true);
        kernels.reduce(Reduction::mean, x, total, false);
        kernels.sum_rows(dy, bias, true);
        kernels.gelu_bias_grad(GeluTanh(), x, dy, dpre, &bias2, true);
        return std::vector<Tensor>{y, d, sum, total, bias, dpre, bias2};
      },
      "elementwise");
}

TEST_P(KernelsRows, Norms) {
  const Tensor x = in({rows, width}, 1), w = in({width}, 2), b = in({width}, 3);
  const Tensor dy = in({rows, width}, 4);
  expect_thread_independent(
      [&] {
        Tensor y = in({rows, width}, 5), mean = f32({rows}, 0), rstd = f32({rows}, 0);
        Tensor dx = in({rows, width}, 6), dw = f32({width}, 7), db = f32({width}, 8);
        kernels.layer_norm(x, w, b, 1e-5f, y, mean, rstd);
        kernels.layer_norm_grad(x, w, mean, rstd, dy, &dx, true, &dw, true, &db, false);
        Tensor z = in({rows, width}, 5), rms = f32({rows}, 0);
        Tensor dz = f32({rows, width}, 9), dw2 = f32({width}, 10);
        kernels.rms_norm(x, w, 1e-6f, z, rms);
        kernels.rms_norm_grad(x, w, rms, dy, &dz, false, &dw2, true);
        return std::vector<Tensor>{y, mean, rstd, dx, dw, db, z, rms, dz, dw2};
      },
      "norms");
}

TEST_P(KernelsRows, NormGradientsThatNobodyWantsMayBeNull) {
  const Tensor x = in({rows, width}, 1), w = in({width}, 2), dy = in({rows, width}, 3);
  const Tensor mean = f32({rows}, 4), rstd = f32({rows}, 5);
  Tensor dw = f32({width}, 6), all_dw = f32({width}, 7), dx = in({rows, width}, 8);
  Tensor db = f32({width}, 9);
  kernels.layer_norm_grad(x, w, mean, rstd, dy, nullptr, false, &dw, false, nullptr, false);
  kernels.layer_norm_grad(x, w, mean, rstd, dy, &dx, false, &all_dw, false, &db, false);
  EXPECT_EQ(bytes(dw), bytes(all_dw));
}

TEST_P(KernelsRows, TokensAndLoss) {
  const Tensor table = in({31, width}, 1), dy = in({rows, width}, 2);
  Tensor ids = Tensor::empty({rows}, DType::i32), targets = Tensor::empty({rows}, DType::i32);
  for (int i = 0; i < rows; ++i) {
    ids.data<int32_t>()[i] = i * i % 31;
    targets.data<int32_t>()[i] = i % 5 == 0 ? -1 : i % width;
  }
  const Tensor logits = random_tensor({rows, width}, DType::f32, 3, 20.0f);
  StepScalars scalars;
  scalars.step = 7;
  scalars.first_sample = 40;
  const DropoutKey key{stream_key(1, "dropout"), &scalars};
  const Tensor batch = in({7, 29, width}, 4);
  expect_thread_independent(
      [&] {
        Tensor y = in({rows, width}, 5), dtable = f32({31, width}, 6), loss = f32({rows}, 0);
        Tensor dlogits = in({rows, width}, 0), p = in({rows, width}, 0), dx = in({rows, width}, 8);
        Tensor kept = in({7, 29, width}, 9);
        kernels.embedding(table, ids, y);
        kernels.embedding_grad(ids, dy, dtable, true);
        kernels.cross_entropy(logits, targets, loss, &dlogits);
        kernels.softmax(dy, p);
        kernels.softmax_grad(p, dy, dx, true);
        kernels.dropout(batch, 0.3f, key, kept, true);
        return std::vector<Tensor>{y, dtable, loss, dlogits, p, dx, kept};
      },
      "tokens and loss");
}

TEST_P(KernelsRows, AdamWFollowsTheFormula) {
  const int64_t n = 9001;  // more than two pieces
  const AdamWOptions options{0.9f, 0.95f, 1e-8f, 0.1f};
  const StepScalars scalars{1e-2f, 0.5f, 0.271f, 0.142625f, 0, 3};
  const Tensor grad = f32({n}, 1), start = f32({n}, 2), m0 = f32({n}, 3);
  const bool narrow = GetParam() == DType::bf16;
  const auto step = [&] {
    Tensor master = Tensor::from(start.to_vector<float>(), {n}), param = in({n}, 4);
    if (!narrow) param = master;
    Tensor m = Tensor::from(m0.to_vector<float>(), {n}), v = Tensor::zeros({n});
    kernels.adamw(options, scalars, grad, param, narrow ? &master : nullptr, m, v);
    return std::vector<Tensor>{param, master, m, v};
  };
  expect_thread_independent(step, "adamw");
  const std::vector<Tensor> got = step();
  const std::vector<double> p = values(start), g = values(grad), first = values(m0);
  std::vector<double> want = p;
  for (int64_t i = 0; i < n; ++i) {
    const double scaled = 0.5 * g[i], m = 0.9 * first[i] + 0.1 * scaled, v = 0.05 * scaled * scaled;
    want[i] -= 1e-2 * 0.1 * want[i];
    want[i] -= 1e-2 * (m / 0.271) / (std::sqrt(v / 0.142625) + 1e-8);
  }
  // The step is at most lr / (0.271 sqrt(0.05 / 0.1426)) |m / g|; its ten operations, and betas
  // that are floats, err by 16 u of it.
  const auto bound = [&](size_t i) {
    return 16 * 0x1p-24 * (std::fabs(want[i]) + std::fabs(p[i] - want[i])) + 1e-9;
  };
  for (size_t i = 0; i < want.size(); i += 97)
    ASSERT_NEAR(got[1].data<float>()[i], want[i], bound(i)) << i;
  for (int64_t i = 0; narrow && i < n; ++i)
    ASSERT_EQ(got[0].data<bf16>()[i].bits, to_bf16(got[1].data<float>()[i]).bits);
}

// The gradient is the new momentum; v stays, and where it is zero nothing is scaled by it.
TEST_P(KernelsRows, AdamWWithAFrozenVariance) {
  const int64_t n = 9001;
  const StepScalars scalars{1e-2f, 0.5f, 0.271f, 0.142625f, 0, 3, 1};
  const Tensor grad = f32({n}, 1), start = f32({n}, 2), m0 = f32({n}, 3);
  Tensor v = Tensor::zeros({n});
  for (int64_t i = 0; i < n; ++i) v.data<float>()[i] = static_cast<float>(i % 3);
  Tensor master = Tensor::from(start.to_vector<float>(), {n}), param = in({n}, 4);
  Tensor m = Tensor::from(m0.to_vector<float>(), {n});
  const bool narrow = GetParam() == DType::bf16;
  kernels.adamw({0.9f, 0.95f, 0.0f, 0.1f}, scalars, grad, narrow ? param : master,
                narrow ? &master : nullptr, m, v);
  const std::vector<double> p = values(start), g = values(grad);
  for (int64_t i = 0; i < n; ++i) {
    const double kept = (1 - 1e-2 * 0.1) * p[i], variance = static_cast<double>(i % 3);
    const double moved = 0.5 * g[i];
    const double step = 1e-2 * (moved / 0.271) / std::sqrt(variance / 0.142625);
    ASSERT_EQ(v.data<float>()[i], variance);
    ASSERT_EQ(m.data<float>()[i], variance > 0 ? moved : 0) << i;
    ASSERT_NEAR(master.data<float>()[i], variance > 0 ? kept - step : kept,
                16 * 0x1p-24 * (std::fabs(kept) + 1))
        << i;
  }
}

TEST_P(KernelsRows, SkippedStepsChangeNothing) {
  StepScalars scalars;
  scalars.lr = 1, scalars.skip = 1;
  Tensor param = in({100}, 1), master = f32({100}, 2), m = f32({100}, 3), v = f32({100}, 4);
  const auto before = std::vector{bytes(param), bytes(master), bytes(m), bytes(v)};
  const Tensor grad = f32({100}, 5);
  Tensor* copy = GetParam() == DType::bf16 ? &master : nullptr;
  kernels.adamw({0.9f, 0.95f, 1e-8f, 0.1f}, scalars, grad, param, copy, m, v);
  kernels.sgd({0.9f, 0.1f}, scalars, grad, param, copy, m);
  EXPECT_EQ((std::vector{bytes(param), bytes(master), bytes(m), bytes(v)}), before);
}

INSTANTIATE_TEST_SUITE_P(Types, KernelsRows, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return name_of(info.param); });

TEST(KernelsCellNorms, AreSumsOfSquaresPerCell) {
  const int64_t n = 2 * cell_size + 17;
  Tensor x = random_tensor({n}, DType::f32, 1);
  Tensor partials = Tensor::empty({3}, DType::f64);
  const auto norms = [&] {
    backend().cell_norms(x, partials);
    return values(partials);
  };
  std::vector<double> want(3);
  for (int64_t i = 0; i < n; ++i) want[i / cell_size] += std::pow(values(x.rows(i, i + 1))[0], 2);
  const std::vector<double> got = norms();
  for (int c = 0; c < 3; ++c) EXPECT_NEAR(got[c], want[c], cell_size * 0x1p-53 * want[c]) << c;

  x.data<float>()[cell_size] = 3e38f;  // finite, though its square is not in fp32
  EXPECT_TRUE(std::isfinite(norms()[1]));
  x.data<float>()[cell_size + 1] = INFINITY;
  x.data<float>()[2 * cell_size + 16] = NAN;
  EXPECT_TRUE(std::isfinite(norms()[0]));
  EXPECT_FALSE(std::isfinite(norms()[1]));
  EXPECT_FALSE(std::isfinite(norms()[2]));
}

}  // namespace
}  // namespace lockstep
