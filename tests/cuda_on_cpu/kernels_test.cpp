// Every kernel of core/cuda but attention's and the codecs' against the CPU backend, with sizes
// that fill no block. Read next: attention_test.cpp.
#include <cmath>

#include "core/philox.h"
#include "tests/cuda_on_cpu/against_cpu.h"

namespace lockstep {
namespace {

using namespace test;

TEST_P(CudaKernels, UnaryFunctions) {
  for (size_t f = 0; f < std::variant_size_v<Unary>; ++f) {
    const Unary functions[] = {Neg(),  Scale{-1.7f}, Exp(),     Log(),  Sqrt(),     Square(),
                               Relu(), Tanh(),       Sigmoid(), Silu(), GeluTanh(), GeluErf()};
    Tensor x = in({5, 77}, 1, 3.0f), dy = in({5, 77}, 2);
    if (std::holds_alternative<Log>(functions[f]) || std::holds_alternative<Sqrt>(functions[f]))
      cpu_backend().unary(Square(), x, x);
    compare(
        [&](Backend& k) {
          Tensor y = in({5, 77}, 3), dx = f32({5, 77}, 4), turned = in({77, 5}, 5);
          k.unary(functions[f], x, y);
          k.unary_grad(functions[f], x, dy, dx, true);
          Tensor view = turned.transposed();
          k.unary_grad(functions[f], x, dy, view, false);
          return Tensors{y, dx, turned};
        },
        16, 40, fmt::format("unary {}", functions[f].index()));
  }
}

TEST_P(CudaKernels, BinaryFunctionsRepeatTheirOperands) {
  const Binary functions[] = {Add(), Sub(), Mul(), Div(), Equal()};
  struct Sizes {
    Shape a, b, y;
  };
  for (const Sizes& s : {Sizes{{7, 48}, {7, 48}, {7, 48}}, Sizes{{3, 5, 40}, {40}, {3, 5, 40}},
                         Sizes{{3, 1, 5}, {4, 1}, {3, 4, 5}}, Sizes{{}, {2, 9}, {2, 9}}})
    for (const Binary& f : functions) {
      Tensor a = in(s.a, 1), b = in(s.b, 2);
      const Tensor dy = in(s.y, 3);
      if (std::holds_alternative<Div>(f)) cpu_backend().unary(Exp(), b, b);
      compare(
          [&](Backend& k) {
            Tensor y = in(s.y, 4), da = f32(s.y, 5), db = in(s.y, 6);
            k.binary(f, a, b, y);
            k.binary_grad(f, a, b, dy, false, da, true);
            k.binary_grad(f, a, b, dy, true, db, false);
            return Tensors{y, da, db};
          },
          8, 8, fmt::format("binary {}", f.index()));
    }
}

TEST_P(CudaKernels, MovementOfAnyStrides) {
  const Tensor x = in({6, 5, 16}, 1), flat = in({1003}, 2);
  compare(
      [&](Backend& k) {
        Tensor filled = in({13, 9}, 3), part = filled.view({5, 3}, {18, 2}, 4);
        k.fill(part, -2.5f);
        Tensor wide = f32({6, 5, 16}, 4), turned = in({16, 5, 6}, 5);
        k.copy(x, wide, true);
        Tensor reversed = turned.view({6, 5, 16}, {1, 6, 30}, 0);
        k.copy(x, reversed, false);
        Tensor tail = in({1003}, 6), shifted = in({1003}, 7);
        k.copy(flat, tail, true);
        Tensor odd = shifted.view({1000}, {1}, 3);
        k.copy(flat.view({1000}, {1}, 1), odd, false);
        Tensor none = in({0, 4}, 8), one = f32({}, 9);
        k.copy(in({0, 4}, 8), none, true);
        k.fill(one, 4.0f);
        return Tensors{filled, wide, turned, tail, shifted, none, one};
      },
      2, 2, "movement");
}

TEST_P(CudaKernels, Reductions) {
  const Tensor x = in({7, 9, 40}, 1), many = in({1, 40000}, 2);
  for (Reduction r : {Reduction::sum, Reduction::mean, Reduction::max})
    compare(
        [&](Backend& k) {
          Tensor all = f32({1, 1, 1}, 3), last = f32({7, 9, 1}, 4), outer = in({1, 1, 40}, 5);
          Tensor middle = f32({7, 1, 40}, 6), one = f32({1, 1}, 7), columns = f32({40, 9, 1}, 8);
          k.reduce(r, x, all, true);
          k.reduce(r, x, last, false);
          k.reduce(r, x, outer, false);
          k.reduce(r, x, middle, true);
          k.reduce(r, many, one, false);
          k.reduce(r, x.view({40, 9, 7}, {1, 40, 360}, 0), columns, false);
          return Tensors{all, last, outer, middle, one, columns};
        },
        512, 1, fmt::format("reduce {}", static_cast<int>(r)));
  Tensor x_nan = f32({3, 100}, 9);
  x_nan.data<float>()[150] = NAN;
  CudaBackend gpu(nullptr);
  Tensor most = f32({3, 1}, 10), empty = f32({2, 1}, 11);
  gpu.reduce(Reduction::max, x_nan, most, false);
  EXPECT_FALSE(std::isnan(most.data<float>()[0]));
  EXPECT_TRUE(std::isnan(most.data<float>()[1]));
  gpu.reduce(Reduction::sum, f32({2, 0}, 12), empty, false);
  EXPECT_EQ(empty.to_vector<float>(), (std::vector<float>{0, 0}));
}

TEST_P(CudaKernels, SumsOverRows) {
  for (int64_t width : {5, 77, 320}) {
    const Tensor pre = in({203, width}, 1, 3.0f), dy = in({203, width}, 2);
    compare(
        [&](Backend& k) {
          Tensor b = f32({width}, 3), b1 = f32({width}, 4), b2 = f32({width}, 5);
          Tensor d1 = in({203, width}, 6), d2 = in({203, width}, 7), d3 = in({203, width}, 8);
          k.sum_rows(dy, b, true);
          k.gelu_bias_grad(GeluTanh(), pre, dy, d1, &b1, false);
          k.gelu_bias_grad(GeluErf(), pre, dy, d2, &b2, true);
          k.gelu_bias_grad(GeluErf(), pre, dy, d3, nullptr, false);
          return Tensors{b, b1, b2, d1, d2, d3};
        },
        203 + 16, 203.0 / 8, fmt::format("sums over rows of {}", width));
  }
}

// In the product's epilogue where rows are multiples of 8, else as passes of their own.
TEST_P(CudaKernels, ProductsWithGelu) {
  for (int64_t n : {40, 21})
    for (const Unary& gelu : {Unary(GeluTanh()), Unary(GeluErf())}) {
      const Tensor x = in({33, 24}, 1, 0.5f), w = in({n, 24}, 2, 0.5f), b = in({n}, 3);
      const Tensor dy = in({33, 24}, 4, 0.5f), w2 = in({24, n}, 5, 0.5f),
                   pre = in({33, n}, 6, 3.0f);
      // Beside 24 products and gelu, a result that is stored as bf16 and read again.
      compare(
          [&](Backend& k) {
            Tensor p = in({33, n}, 7), y = in({33, n}, 8), q = in({33, n}, 9), z = in({33, n}, 10);
            k.gemm_gelu(x, w.transposed(), &b, gelu, p, y);
            k.gemm_gelu(x, w.transposed(), nullptr, gelu, q, z);
            Tensor d1 = in({33, n}, 11), d2 = in({33, n}, 12), db = f32({n}, 13);
            k.gemm_gelu_grad(dy, w2, gelu, pre, d1, nullptr, false);
            k.gemm_gelu_grad(dy, w2, gelu, pre, d2, &db, true);
            return Tensors{p, y, q, z, d1, d2};
          },
          24 + 16 + stored, 1.5, fmt::format("products of {} columns with gelu", n));
      compare(
          [&](Backend& k) {
            Tensor d = in({33, n}, 12), db = f32({n}, 13);
            k.gemm_gelu_grad(dy, w2, gelu, pre, d, &db, true);
            return Tensors{db};
          },
          (24 + 16 + stored) * 33 / 4, 1.5, "bias gradients of gelu");
    }
}

TEST_P(CudaKernels, Norms) {
  for (const auto& [rows, c] : {std::pair{5, 19}, {131, 40}, {3, 1000}}) {
    const Tensor x = in({rows, c}, 1), w = in({c}, 2), b = in({c}, 3), dy = in({rows, c}, 4);
    Tensor mean = f32({rows}, 0), rstd = f32({rows}, 0), rms = f32({rows}, 0);
    Tensor y = in({rows, c}, 5);
    cpu_backend().layer_norm(x, w, b, 1e-5f, y, mean, rstd);
    cpu_backend().rms_norm(x, w, 1e-6f, y, rms);
    compare(
        [&](Backend& k) {
          Tensor y1 = in({rows, c}, 5), m = f32({rows}, 0), r1 = f32({rows}, 0);
          Tensor y2 = in({rows, c}, 6), r2 = f32({rows}, 0);
          k.layer_norm(x, w, b, 1e-5f, y1, m, r1);
          k.rms_norm(x, w, 1e-6f, y2, r2);
          Tensor dx1 = f32({rows, c}, 7), dw1 = f32({c}, 8), db1 = f32({c}, 9);
          Tensor dx2 = in({rows, c}, 10), dw2 = f32({c}, 11), dw3 = f32({c}, 12);
          k.layer_norm_grad(x, w, mean, rstd, dy, &dx1, true, &dw1, false, &db1, true);
          k.rms_norm_grad(x, w, rms, dy, &dx2, false, &dw2, true);
          k.layer_norm_grad(x, w, mean, rstd, dy, nullptr, false, &dw3, true, nullptr, false);
          return Tensors{y1, m, r1, y2, r2, dx1, dw1, db1, dx2, dw2, dw3};
        },
        c + rows + 32, 4, fmt::format("norms of {} x {}", rows, c));
  }
}

TEST_P(CudaKernels, SoftmaxAndCrossEntropy) {
  for (const auto& [rows, c] : {std::pair{6, 19}, {4, 256}, {3, 4500}}) {
    const Tensor x = in({rows, c}, 1, 20.0f), dy = in({rows, c}, 2);
    const Tensor logits = random_tensor({rows, c}, DType::f32, 3, 20.0f);
    Tensor p = in({rows, c}, 4), targets = Tensor::empty({rows}, DType::i32);
    cpu_backend().softmax(x, p);
    for (int i = 0; i < rows; ++i) targets.data<int32_t>()[i] = i == 1 ? -1 : c - 1 - i;
    logits.data<float>()[5] = -INFINITY;
    compare(
        [&](Backend& k) {
          Tensor y = in({rows, c}, 5), dx = f32({rows, c}, 6), loss = f32({rows}, 7);
          Tensor dlogits = in({rows, c}, 8), only = f32({rows}, 9);
          k.softmax(x, y);
          k.softmax_grad(p, dy, dx, true);
          k.cross_entropy(logits, targets, loss, &dlogits);
          k.cross_entropy(logits, targets, only, nullptr);
          return Tensors{y, dx, loss, dlogits, only};
        },
        c + 48, 1, fmt::format("softmax of {} x {}", rows, c));
  }
}

TEST_P(CudaKernels, EmbeddingAndItsGradient) {
  for (int64_t d : {7, 64, 1100}) {
    const int64_t n = 150;
    const Tensor table = in({31, d}, 1), dy = in({n, d}, 2);
    Tensor ids = Tensor::empty({n}, DType::i32);
    for (int i = 0; i < n; ++i) ids.data<int32_t>()[i] = i % 3 == 0 ? 4 : i * i % 29;
    compare(
        [&](Backend& k) {
          Tensor y = in({n, d}, 3), added = f32({31, d}, 4), written = f32({31, d}, 5);
          k.embedding(table, ids, y);
          k.embedding_grad(ids, dy, added, true);
          k.embedding_grad(ids, dy, written, false);
          return Tensors{y, added, written};
        },
        64, 8, fmt::format("embedding {}", d));
  }
}

TEST_P(CudaKernels, RopeAndSwiglu) {
  for (const Heads& h : {Heads{3, 1, 6}, Heads{2, 2, 32}}) {
    const Tensor x = in({2, 9, h.packed()}, 1), c = f32({11, h.head_dim / 2}, 2);
    const Tensor s = f32({11, h.head_dim / 2}, 3);
    const Tensor gates = in({18, 2 * h.head_dim}, 6, 4.0f), dy = in({18, h.head_dim}, 7);
    compare(
        [&](Backend& k) {
          Tensor y = in(x.shape(), 4), dx = f32(x.shape(), 5);
          k.rope(x, c, s, h, false, y, false);
          k.rope(x, c, s, h, true, dx, true);
          Tensor z = in({18, h.head_dim}, 8), d = f32({18, 2 * h.head_dim}, 9);
          k.swiglu(gates, z);
          k.swiglu_grad(gates, dy, d, true);
          return Tensors{y, dx, z, d};
        },
        16, 8, "rope and swiglu");
  }
}

TEST_P(CudaKernels, DropoutDrawsTheSameBits) {
  StepScalars scalars;
  scalars.step = 7;
  scalars.first_sample = 40;
  const DropoutKey key{stream_key(1, "dropout"), &scalars};
  for (const Shape& shape : {Shape{3, 29, 77}, Shape{2, 600, 8}}) {
    const Tensor x = in(shape, 1);
    Tensor want = in(shape, 2), got = in(shape, 2);
    CudaBackend gpu(nullptr);
    cpu_backend().dropout(x, 0.3f, key, want, false);
    gpu.dropout(x, 0.3f, key, got, false);
    EXPECT_EQ(bytes(got), bytes(want));
    compare(
        [&](Backend& k) {
          Tensor added = f32(shape, 3);
          k.dropout(x, 0.3f, key, added, true);
          return Tensors{added};
        },
        2, 2, "dropout");
  }
}

TEST_P(CudaKernels, OptimizersAndCellNorms) {
  const bool narrow = GetParam() == DType::bf16;
  for (const int64_t n : {9001, 4096}) {
    StepScalars scalars{1e-2f, 0.5f, 0.271f, 0.142625f, 0, 3};
    const Tensor grad = f32({n}, 1);
    for (const auto& [skip, frozen] : {std::pair{0, 0}, {1, 0}, {0, 1}}) {
      scalars.skip = skip;
      scalars.variance_frozen = frozen;
      compare(
          [&](Backend& k) {
            Tensor master = f32({n}, 2), m = f32({n}, 3), v = Tensor::zeros({n}), b = f32({n}, 4);
            if (frozen)  // every third element never had a gradient
              for (int64_t i = 0; i < n; ++i) v.data<float>()[i] = static_cast<float>(i % 3) * 0.2f;
            Tensor param = narrow ? in({n}, 5) : master;
            Tensor master2 = f32({n}, 6), param2 = narrow ? in({n}, 7) : master2;
            Tensor norms = Tensor::zeros({(n + cell_size - 1) / cell_size}, DType::f64);
            k.adamw({0.9f, 0.95f, 1e-8f, 0.1f}, scalars, grad, param, narrow ? &master : nullptr, m,
                    v);
            k.sgd({0.9f, 0.1f}, scalars, grad, param2, narrow ? &master2 : nullptr, b);
            k.cell_norms(grad, norms);
            return Tensors{param, master, m, v, param2, master2, b, norms};
          },
          16, 1, "optimizers");
    }
  }
  CudaBackend gpu(nullptr);
  Tensor x = f32({2 * cell_size}, 1), norms = Tensor::zeros({2}, DType::f64);
  x.data<float>()[cell_size + 9] = INFINITY;
  gpu.cell_norms(x, norms);
  EXPECT_TRUE(std::isfinite(norms.data<double>()[0]));
  EXPECT_FALSE(std::isfinite(norms.data<double>()[1]));
}

// Sums over ranks have the CPU's bits, wherever the tree is cut into kernels, in place too.
TEST(CudaFlat, SumsOfRanksHaveTheBitsOfTheCpu) {
  CudaBackend gpu(nullptr);
  const int64_t n = 1003;
  const auto sum = [&](Backend& k, int ranks, int64_t skip) {
    std::vector<Tensor> ranks_own;
    std::vector<const float*> parts;
    for (int r = 0; r < ranks; ++r) {
      ranks_own.push_back(random_tensor({n}, DType::f32, r));
      parts.push_back(ranks_own[r].data<float>() + skip);
    }
    Tensor other = Tensor::zeros({n}), more = random_tensor({n}, DType::f32, 99);
    float* outs[] = {ranks_own[ranks / 2].data<float>() + skip, other.data<float>()};
    k.tree_sum(parts, outs, n - skip);
    k.add(outs[0], more.data<float>(), n - skip);
    k.move(more.data<float>(), ranks_own[0].data<float>(), 40);
    k.zero(ranks_own[0].data<float>() + 10, 8);
    return std::vector{bytes(ranks_own[ranks / 2]), bytes(other), bytes(more), bytes(ranks_own[0])};
  };
  for (int ranks : {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 40})
    for (int64_t skip : {0, 3})
      EXPECT_EQ(sum(gpu, ranks, skip), sum(cpu_backend(), ranks, skip)) << ranks << " " << skip;
}

INSTANTIATE_TEST_SUITE_P(Types, CudaKernels, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace lockstep
