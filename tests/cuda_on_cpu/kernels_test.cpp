// Every kernel of core/cuda but the codecs' against the CPU backend, run as fibers in five thread
// orders, in fp32 and bf16, with sizes that fill no block. Bounds: both sides round n times (n
// below, per kernel), so they differ by at most 2 n u of the magnitudes involved, and by one
// rounding of what is stored. Read next: codecs_test.cpp.
#include <functional>

#include "core/cuda/cuda_backend.h"
#include "core/philox.h"
#include "tests/core/kernel_data.h"
#include "tests/cuda_on_cpu/orders.h"

namespace lockstep {
namespace {

using namespace test;
using Tensors = std::vector<Tensor>;

// All outputs of `kernel` on the GPU's twin, in every order: near the CPU's, and the same bits in
// each order. `roundings` is how many fp32 roundings an element of size `size` went through.
void compare(const std::function<Tensors(Backend&)>& kernel, double roundings, double size,
             const std::string& what) {
  const Tensors want = kernel(cpu_backend());
  CudaBackend gpu(nullptr);
  std::vector<std::vector<uint8_t>> first;
  for_each_order([&](int order) {
    const Tensors got = kernel(gpu);
    ASSERT_EQ(got.size(), want.size()) << what;
    for (size_t k = 0; k < got.size(); ++k) {
      const std::string which = fmt::format("{}, output {}, order {}", what, k, order);
      if (order == 0) {
        const std::vector<double> expected = values(want[k]);
        expect_near(
            got[k], expected,
            [&](size_t i) {
              return 2 * roundings * 0x1p-24 * (size + std::fabs(expected[i])) +
                     2 * unit_roundoff(got[k].dtype()) * std::fabs(expected[i]);
            },
            which);
        first.push_back(bytes(got[k]));
      } else {
        ASSERT_EQ(bytes(got[k]), first[k]) << which;
      }
    }
  });
}

class CudaKernels : public ::testing::TestWithParam<DType> {
 protected:
  Tensor in(Shape shape, uint32_t seed, float scale = 1.0f) {
    return random_tensor(std::move(shape), GetParam(), seed, scale);
  }
  Tensor f32(Shape shape, uint32_t seed) {
    return random_tensor(std::move(shape), DType::f32, seed);
  }
  // Sums of bf16 values that are then added to a bf16 number round twice.
  const double stored = GetParam() == DType::bf16 ? 0x1p16 : 0;
};

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

struct AttentionSizes {
  int64_t b, t;
  Heads heads;
};
#ifdef __SANITIZE_THREAD__  // a hundred times slower there; two tiles show every race
const std::vector<AttentionSizes> attention_sizes{{1, 67, {2, 1, 20}}};
#else
const std::vector<AttentionSizes> attention_sizes{
    {1, 1, {1, 1, 1}},   {2, 67, {4, 2, 20}},  {1, 130, {2, 1, 64}},
    {1, 40, {2, 2, 72}}, {1, 70, {1, 1, 128}}, {1, 35, {1, 1, 129}},
};
#endif

// On plain cores: all of fp32, and bf16 where heads are too wide for the tensor cores' tiles.
TEST_P(CudaKernels, Attention) {
  for (const AttentionSizes& s : attention_sizes) {
    if (GetParam() == DType::bf16 && s.heads.head_dim <= 128) continue;
    const Tensor qkv = in({s.b, s.t, s.heads.packed()}, 1);
    const Tensor d_o = in({s.b, s.t, s.heads.n_head * s.heads.head_dim}, 2);
    Tensor o = in(d_o.shape(), 3), lse = f32({s.b, s.heads.n_head, s.t}, 4);
    cpu_backend().attention(qkv, s.heads, o, lse);
    const double d = static_cast<double>(s.heads.head_dim), t = static_cast<double>(s.t);
    // As in kernels_attention_test.cpp: a score errs by d^1.5 u, a sum over t by t u.
    compare(
        [&](Backend& k) {
          Tensor o1 = in(d_o.shape(), 5), lse1 = f32({s.b, s.heads.n_head, s.t}, 6);
          Tensor grad = in(qkv.shape(), 7), added = f32(qkv.shape(), 8);
          k.attention(qkv, s.heads, o1, lse1);
          k.attention_grad(qkv, s.heads, o, lse, d_o, grad, false);
          k.attention_grad(qkv, s.heads, o, lse, d_o, added, true);
          return Tensors{o1, lse1, grad, added};
        },
        2 * d * std::sqrt(d) + t + 16, d, fmt::format("attention t {} dim {}", s.t, d));
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

// Sizes of the terms of which attention's results are sums: of o; of dqkv as they are, and with the
// magnitudes of all products, so that nothing cancels.
struct Magnitudes {
  std::vector<double> o, dqkv, products;
};

Magnitudes magnitudes(const AttentionSizes& s, const Tensor& qkv, const Tensor& d_o) {
  const auto [h, kv_heads, d] = s.heads;
  const std::vector<double> x = values(qkv), g = values(d_o);
  Magnitudes m{std::vector<double>(g.size()), std::vector<double>(x.size()),
               std::vector<double>(x.size())};
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  for (int64_t b = 0; b < s.b; ++b)
    for (int64_t head = 0; head < h; ++head)
      for (int64_t i = 0; i < s.t; ++i) {
        const auto row = [&](int64_t at, int64_t part) {
          return (b * s.t + at) * s.heads.packed() + part * d;
        };
        const int64_t kv = head / (h / kv_heads), q = row(i, head),
                      o = ((b * s.t + i) * h + head) * d;
        std::vector<double> p(i + 1), dp(i + 1), abs_dp(i + 1);
        double sum = 0, delta = 0, abs_delta = 0;
        for (int64_t j = 0; j <= i; ++j) {
          const int64_t k = row(j, h + kv), v = row(j, h + kv_heads + kv);
          for (int64_t e = 0; e < d; ++e) {
            p[j] += scale * x[q + e] * x[k + e];
            dp[j] += g[o + e] * x[v + e];
            abs_dp[j] += std::fabs(g[o + e] * x[v + e]);
          }
          sum += p[j] = std::exp(p[j]);
        }
        for (int64_t j = 0; j <= i; ++j) {
          p[j] /= sum;
          delta += p[j] * dp[j];
          abs_delta += p[j] * abs_dp[j];
        }
        for (int64_t j = 0; j <= i; ++j) {
          const int64_t k = row(j, h + kv), v = row(j, h + kv_heads + kv);
          const double ds = scale * p[j] * std::fabs(dp[j] - delta);
          const double abs_ds = scale * p[j] * (abs_dp[j] + abs_delta);
          for (int64_t e = 0; e < d; ++e) {
            m.o[o + e] += p[j] * std::fabs(x[v + e]);
            m.dqkv[v + e] += p[j] * std::fabs(g[o + e]);
            m.dqkv[q + e] += ds * std::fabs(x[k + e]);
            m.dqkv[k + e] += ds * std::fabs(x[q + e]);
            m.products[v + e] += p[j] * std::fabs(g[o + e]);
            m.products[q + e] += abs_ds * std::fabs(x[k + e]);
            m.products[k + e] += abs_ds * std::fabs(x[q + e]);
          }
        }
      }
  return m;
}

// bf16 on tensor cores. They take probabilities and score gradients as bf16, so each term of a
// result errs by u = 2^-8 of itself; what fp32 adds is bounded as in kernels_attention_test.cpp,
// and what is stored is rounded on both sides.
TEST(CudaTensorCores, Attention) {
  for (const AttentionSizes& s : attention_sizes) {
    if (s.heads.head_dim > 128) continue;
    const int64_t d = s.heads.head_dim;
    const Tensor qkv = random_tensor({s.b, s.t, s.heads.packed()}, DType::bf16, 1);
    const Tensor d_o = random_tensor({s.b, s.t, s.heads.n_head * d}, DType::bf16, 2);
    const auto fill = [](const Tensor& like, DType type) {
      return random_tensor(like.shape(), type, 3);
    };
    Tensor o = fill(d_o, DType::bf16), lse = Tensor::zeros({s.b, s.heads.n_head, s.t});
    Tensor grad = fill(qkv, DType::bf16), added = fill(qkv, DType::f32);
    cpu_backend().attention(qkv, s.heads, o, lse);
    cpu_backend().attention_grad(qkv, s.heads, o, lse, d_o, grad, false);
    cpu_backend().attention_grad(qkv, s.heads, o, lse, d_o, added, true);
    const Magnitudes m = magnitudes(s, qkv, d_o);
    const double u = 0x1p-8, t = static_cast<double>(s.t), width = static_cast<double>(d);
    const double fp32 = 2 * (2 * width * std::sqrt(width) + t + 16) * 0x1p-24;
    const std::vector<double> want_o = values(o), want_grad = values(grad);
    const std::string what = fmt::format("attention t {} dim {}", s.t, d);
    CudaBackend gpu(nullptr);
    std::vector<std::vector<uint8_t>> first;
    for_each_order([&](int order) {
      Tensor o1 = fill(o, DType::bf16), lse1 = fill(lse, DType::f32);
      Tensor grad1 = fill(qkv, DType::bf16), added1 = fill(qkv, DType::f32);
      gpu.attention(qkv, s.heads, o1, lse1);
      gpu.attention_grad(qkv, s.heads, o, lse, d_o, grad1, false);
      gpu.attention_grad(qkv, s.heads, o, lse, d_o, added1, true);
      std::vector<std::vector<uint8_t>> all{bytes(o1), bytes(lse1), bytes(grad1), bytes(added1)};
      if (order > 0) {
        EXPECT_EQ(all, first) << what << ", order " << order;
        return;
      }
      first = std::move(all);
      expect_near(
          o1, want_o, [&](size_t i) { return (u + fp32) * m.o[i] + 2 * u * std::fabs(want_o[i]); },
          what + " o");
      expect_near(
          lse1, values(lse), [&](size_t) { return fp32 * 2; }, what + " lse");
      const auto term = [&](size_t i) { return u * m.dqkv[i] + fp32 * m.products[i]; };
      expect_near(
          grad1, want_grad, [&](size_t i) { return term(i) + 2 * u * std::fabs(want_grad[i]); },
          what + " dqkv");
      expect_near(
          added1, values(added), [&](size_t i) { return term(i) + 0x1p-22; }, what + " dqkv added");
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaKernels, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace lockstep
