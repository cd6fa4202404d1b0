// gemm against a product in double precision: transposes, batches, bias, alpha, accumulation, both
// types, odd and empty sizes; and two threads that multiply at the same time.
#include <functional>
#include <thread>

#include "core/cpu/gemm_onednn.h"
#include "tests/core/kernel_data.h"

namespace lockstep {
namespace {

using namespace test;

struct Case {
  int64_t batch, m, k, n;  // batch 0: plain matrices
  bool a_transposed, b_transposed;
  DType in, out;
  bool bias, alpha, accumulate;
};

std::string describe(const Case& c) {
  return fmt::format(
      "batch {} m {} k {} n {} transposed {}{} {} to {} bias {} alpha {} accumulate {}", c.batch,
      c.m, c.k, c.n, int{c.a_transposed}, int{c.b_transposed}, name_of(c.in), name_of(c.out),
      c.bias, c.alpha, c.accumulate);
}

Tensor operand(const Case& c, int64_t rows, int64_t columns, bool transposed, uint32_t seed) {
  Shape shape{transposed ? columns : rows, transposed ? rows : columns};
  if (c.batch) shape.insert(shape.begin(), c.batch);
  const Tensor t = random_tensor(shape, c.in, seed);
  return transposed ? t.transposed() : t;
}

using Gemm = std::function<void(const Tensor& a, const Tensor& b, Tensor& out, const GemmOptions&)>;

void run(const Case& c, const Gemm& gemm) {
  const Tensor a = operand(c, c.m, c.k, c.a_transposed, 1);
  const Tensor b = operand(c, c.k, c.n, c.b_transposed, 2);
  const Tensor bias = random_tensor({c.n}, c.in, 3);
  const Tensor alpha = Tensor::from<float>({-0.37f}, {1});
  Shape shape{c.m, c.n};
  if (c.batch) shape.insert(shape.begin(), c.batch);
  Tensor out = random_tensor(shape, c.out, 4);
  const std::vector<double> av = values(a), bv = values(b), biasv = values(bias);
  std::vector<double> want = values(out), size(want.size());  // size: sum of the terms' magnitudes

  for (int64_t i = 0; i < out.numel(); ++i) {
    const int64_t z = i / (c.m * c.n), row = i / c.n % c.m, column = i % c.n;
    double sum = 0, magnitude = 0;
    for (int64_t l = 0; l < c.k; ++l) {
      const double term = av[(z * c.m + row) * c.k + l] * bv[(z * c.k + l) * c.n + column];
      sum += term, magnitude += std::fabs(term);
    }
    if (c.alpha) sum *= static_cast<double>(-0.37f);
    if (c.bias) sum += biasv[column], magnitude += std::fabs(biasv[column]);
    if (c.accumulate) sum += want[i], magnitude += std::fabs(want[i]);
    want[i] = sum, size[i] = magnitude;
  }
  gemm(a, b, out, {c.bias ? &bias : nullptr, c.alpha ? &alpha : nullptr, c.accumulate});
  // A sum of k + 2 terms errs by at most (k + 2) u |terms|, one rounding of the result besides.
  expect_near(
      out, want,
      [&](size_t i) {
        return static_cast<double>(c.k + 4) * 0x1p-24 * size[i] +
               2 * unit_roundoff(c.out) * std::fabs(want[i]);
      },
      describe(c));
}

void run(const Case& c) {
  run(c, [](const Tensor& a, const Tensor& b, Tensor& out, const GemmOptions& options) {
    backend().gemm(a, b, out, options);
  });
}

// Every combination of transposes, bias, alpha and accumulation.
void run_variants(int64_t batch, int64_t m, int64_t k, int64_t n, DType in, DType out,
                  const std::function<void(const Case&)>& check_case) {
  for (int bits = 0; bits < 32; ++bits)
    check_case({batch, m, k, n, (bits & 1) != 0, (bits & 2) != 0, in, out, (bits & 4) != 0,
                (bits & 8) != 0, (bits & 16) != 0});
}

constexpr std::pair<DType, DType> types[] = {
    {DType::f32, DType::f32}, {DType::bf16, DType::f32}, {DType::bf16, DType::bf16}};

TEST(KernelsGemm, EveryVariantAgreesWithDoublePrecision) {
  const int64_t sizes[][4] = {
      {0, 1, 1, 1}, {3, 5, 1, 4}, {0, 3, 9, 1}, {3, 17, 33, 29}, {0, 64, 96, 48}};
  for (const auto& [batch, m, k, n] : sizes)
    for (const auto& [in, out] : types)
      run_variants(batch, m, k, n, in, out, [](const Case& c) { run(c); });
}

// Several tiles each way with ragged ends, several parts of the inner dimension, and an inner
// dimension so long that b is packed a slab at a time.
TEST(KernelsGemm, ProductsOfManyTiles) {
  for (const auto& [in, out] : types) {
    for (bool a_transposed : {false, true})
      for (bool b_transposed : {false, true})
        run({0, 267, 401, 437, a_transposed, b_transposed, in, out, true, false, true});
    run({0, 5, 12000, 200, false, true, in, out, false, true, false});
  }
}

// One pass has the bits of a product and what follows it, whichever of the two a processor takes.
TEST(KernelsGemm, FusedGeluHasTheBitsOfTwoPasses) {
  if (&backend() != &cpu_backend()) GTEST_SKIP() << "a device's library fuses as it likes";
  const Unary gelu = GeluTanh();
  for (DType t : {DType::f32, DType::bf16})
    for (const auto& [m, n] : {std::pair<int64_t, int64_t>{200, 437}, {9, 30}, {70, 0}, {0, 5}}) {
      const Tensor a = random_tensor({m, 33}, t, 1), b = random_tensor({33, n}, t, 2);
      const Tensor bias = random_tensor({n}, t, 3), before = random_tensor({m, n}, t, 4);
      Tensor pre = Tensor::empty({m, n}, t), y = Tensor::empty({m, n}, t);
      Tensor pre2 = Tensor::empty({m, n}, t), y2 = Tensor::empty({m, n}, t);
      Tensor db = Tensor::empty({n}), db2 = Tensor::empty({n});
      backend().gemm_gelu(a, b, &bias, gelu, pre, y);
      backend().gemm(a, b, pre2, {.bias = &bias});
      backend().unary(gelu, pre2, y2);
      EXPECT_EQ(bytes(pre), bytes(pre2));
      EXPECT_EQ(bytes(y), bytes(y2));
      backend().gemm_gelu_grad(a, b, gelu, before, y, &db, false);
      backend().gemm(a, b, pre2, {});
      backend().gelu_bias_grad(gelu, before, pre2, y2, &db2, false);
      EXPECT_EQ(bytes(y), bytes(y2));
      EXPECT_EQ(bytes(db), bytes(db2));
    }
}

// A gradient of a vocabulary's length must not pack all of the head's weights at once.
TEST(KernelsGemm, ScratchIsBounded) {
  if (&backend() != &cpu_backend()) GTEST_SKIP() << "a device's workspace is its library's";
  Allocator allocator(host_memory());
  AllocatorScope scope(allocator);
  const Tensor a = Tensor::zeros({64, 50304}, DType::bf16);
  const Tensor b = Tensor::zeros({50304, 400}, DType::bf16);
  Tensor out = Tensor::empty({64, 400});
  allocator.reset_peak();
  const int64_t before = allocator.stats().total();
  backend().gemm(a, b, out, {});
  EXPECT_LT(allocator.stats().total_peak - before, int64_t{40 + num_threads()} << 20);
}

// Where oneDNN multiplies bf16 it must say the same; here it can, everywhere.
TEST(KernelsGemm, OneDnnAgreesToo) {
  for (DType out : {DType::f32, DType::bf16})
    run_variants(3, 17, 33, 29, DType::bf16, out, [](const Case& c) { run(c, onednn_gemm); });
}

TEST(KernelsGemm, EmptySizes) {
  for (bool bias : {false, true})
    for (bool accumulate : {false, true}) {
      run({0, 0, 4, 3, false, false, DType::f32, DType::f32, bias, false, accumulate});
      run({0, 4, 3, 0, false, true, DType::f32, DType::f32, bias, false, accumulate});
      run({0, 4, 0, 3, false, false, DType::bf16, DType::bf16, bias, false, accumulate});
      run({2, 4, 0, 3, true, false, DType::f32, DType::f32, bias, true, accumulate});
    }
}

TEST(KernelsGemm, PartsOfABiggerMatrix) {
  const Tensor whole = random_tensor({20, 50}, DType::f32, 5);
  const Tensor a = whole.view({20, 10}, {50, 1}, 3), b = whole.view({10, 20}, {1, 50}, 30);
  Tensor out = Tensor::empty({20, 20});
  backend().gemm(a, b, out, {});
  const std::vector<double> av = values(a), bv = values(b);
  std::vector<double> want(400);
  for (int i = 0; i < 400; ++i)
    for (int l = 0; l < 10; ++l) want[i] += av[i / 20 * 10 + l] * bv[l * 20 + i % 20];
  expect_near(
      out, want, [](size_t) { return 12 * 10 * 0x1p-24; }, "parts");
}

TEST(KernelsGemm, SameBitsForAnyNumberOfThreads) {
  for (DType t : {DType::f32, DType::bf16}) {
    const Tensor x = random_tensor({256, 192}, t, 6), w = random_tensor({320, 192}, t, 7);
    const Tensor dy = random_tensor({256, 320}, t, 8);
    expect_thread_independent(
        [&] {
          Tensor y = Tensor::empty({256, 320}, t), dx = Tensor::empty({256, 192}, t);
          Tensor dw = Tensor::zeros({320, 192});
          backend().gemm(x, w.transposed(), y, {});
          backend().gemm(dy, w, dx, {});
          backend().gemm(dy.transposed(), x, dw, {.accumulate = true});
          return std::vector<Tensor>{y, dx, dw};
        },
        "gemm");
  }
}

TEST(KernelsGemm, TwoThreadsAtOnceGetTheResultsOfOne) {
  const Tensor a = random_tensor({96, 160}, DType::f32, 9),
               b = random_tensor({160, 128}, DType::f32, 10);
  Tensor want = Tensor::empty({96, 128});
  cpu_backend().gemm(a, b, want, {});
  std::vector<std::thread> threads;
  std::array<int, 2> wrong{};
  for (int id : {0, 1})
    threads.emplace_back([&, id] {
      set_num_threads(id + 1);
      for (int i = 0; i < 200; ++i) {
        Tensor out = Tensor::empty({96, 128});
        cpu_backend().gemm(a, b, out, {});
        wrong[id] += bytes(out) != bytes(want);
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, (std::array<int, 2>{}));
}

TEST(KernelsGemm, ErrorsNameTheOperand) {
  const Tensor a = Tensor::zeros({4, 4}), ids = Tensor::zeros({4, 4}, DType::i32);
  Tensor square = Tensor::zeros({4, 4});
  const auto message = [&](const Tensor& x, const Tensor& y, Tensor out) -> std::string {
    try {
      backend().gemm(x, y, out, {});
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_EQ(message(a.view({2, 2}, {4, 2}, 0), a, square),
            "[gemm] strides [4, 2] of f32[2, 2]; one has to be 1");
  EXPECT_EQ(message(a, ids, square), "[gemm] i32 operand; f32 and bf16 are right");
  EXPECT_EQ(message(a.view({16}), a, square),
            "[gemm] operand f32[16]; a matrix or a batch of them is right");
  EXPECT_EQ(message(a, a, square.transposed()),
            "[gemm] result f32[4, 4] is stored by columns; rows are right");
}

}  // namespace
}  // namespace lockstep
