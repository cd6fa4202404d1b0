// What models are made of: matrix products and layers. Rows as in ops_test.cpp. Read next:
// op_facts_test.cpp.
#include <cmath>
#include <numeric>

#include "core/ops.h"
#include "tests/core/op_rows.h"

namespace lockstep::op_suite {
namespace {

// ---- matrices

double product(const Array& a, const Array& b, int64_t i, int64_t j) {
  double sum = 0;
  for (int64_t k = 0; k < a.shape[1]; ++k) sum += a({i, k}) * b({k, j});
  return sum;
}

// x [.., k] w [n, k] + b.
Array naive_linear(const Arrays& x, Shape y) {
  return build(y, [&](Index i) {
    const int64_t j = i.back();
    double sum = x.size() > 2 ? x[2]({j}) : 0;
    for (int64_t k = 0; k < x[1].shape[1]; ++k) {
      i.back() = k;
      sum += x[0](i) * x[1]({j, k});
    }
    return sum;
  });
}

Case mlp_row(const char* name, GeluKind kind, double (*f)(double)) {
  return {name,
          {{2, 3, 5}, {4, 5}, {4}, {6, 4}, {6}},
          [=](const Tensors& x) { return mlp_gelu(x[0], x[1], x[2], x[3], x[4], kind); },
          [=](const Arrays& x) {
            Array hidden = naive_linear({x[0], x[1], x[2]}, {2, 3, 4});
            for (double& v : hidden.values) v = f(v);
            return naive_linear({hidden, x[3], x[4]}, {2, 3, 6});
          },
          -1,
          1};
}

Case gelu_row(const char* name, GeluKind kind, double (*f)(double)) {
  return {name,
          {{2, 3, 5}, {4, 5}, {4}},
          [=](const Tensors& x) { return linear_gelu(x[0], x[1], x[2], kind); },
          [=](const Arrays& x) {
            Array y = naive_linear(x, {2, 3, 4});
            for (double& v : y.values) v = f(v);
            return y;
          },
          -1,
          1};
}

std::vector<Case> linear_rows() {
  std::vector<Case> rows{
      {"matmul",
       {{3, 5}, {5, 4}},
       [](const Tensors& x) { return matmul(x[0], x[1]); },
       [](const Arrays& x) {
         return build({3, 4}, [&](const Index& i) { return product(x[0], x[1], i[0], i[1]); });
       }},
      {"matmul_batched",
       {{2, 3, 5}, {2, 5, 4}},
       [](const Tensors& x) { return matmul(x[0], x[1]); },
       [](const Arrays& x) {
         return build({2, 3, 4}, [&](const Index& i) {
           double sum = 0;
           for (int64_t k = 0; k < 5; ++k) sum += x[0]({i[0], i[1], k}) * x[1]({i[0], k, i[2]});
           return sum;
         });
       }},
      {"matmul_transposed_views",
       {{5, 3}, {4, 5}},
       [](const Tensors& x) { return matmul(transpose(x[0], 0, 1), transpose(x[1], 0, 1)); },
       [](const Arrays& x) {
         return build({3, 4}, [&](const Index& i) {
           double sum = 0;
           for (int64_t k = 0; k < 5; ++k) sum += x[0]({k, i[0]}) * x[1]({i[1], k});
           return sum;
         });
       }},
      {"matmul_repeated_rows",
       {{1, 5}, {5, 4}},
       [](const Tensors& x) {
         return matmul(expand(x[0], {3, 5}), x[1]);
       },
       [](const Arrays& x) {
         return build({3, 4}, [&](const Index& i) { return product(x[0], x[1], 0, i[1]); });
       }},
      {"linear",
       {{2, 3, 5}, {4, 5}, {4}},
       [](const Tensors& x) { return linear(x[0], x[1], x[2]); },
       [](const Arrays& x) {
         return naive_linear(x, {2, 3, 4});
       }},
      {"linear_no_bias",
       {{7, 33}, {5, 33}},
       [](const Tensors& x) { return linear(x[0], x[1]); },
       [](const Arrays& x) {
         return naive_linear(x, {7, 5});
       }},
      mlp_row("mlp_gelu_tanh", GeluKind::tanh, naive_gelu_tanh),
      mlp_row("mlp_gelu_erf", GeluKind::erf, naive_gelu_erf),
      gelu_row("linear_gelu_tanh", GeluKind::tanh, naive_gelu_tanh),
      gelu_row("linear_gelu_erf", GeluKind::erf, naive_gelu_erf),
  };
  return rows;
}

// ---- layers

Tensor ids_of(std::vector<int32_t> ids, Shape shape) {
  return Tensor::from(ids, std::move(shape));
}

// Rows of x [r, c], normalised: (x - center) / sqrt(mean((x - center)^2) + eps).
Array naive_norm(const Array& x, bool centered, double eps) {
  const int64_t c = x.shape.back();
  return build(x.shape, [&](const Index& i) {
    double mean = 0, square = 0;
    for (int64_t k = 0; centered && k < c; ++k) mean += x({i[0], k}) / static_cast<double>(c);
    for (int64_t k = 0; k < c; ++k)
      square += (x({i[0], k}) - mean) * (x({i[0], k}) - mean) / static_cast<double>(c);
    return (x(i) - mean) / std::sqrt(square + eps);
  });
}

// A head's query, key or value in a packed row, which holds all queries, all keys, all values.
int64_t packed_at(const Heads& h, char part, int64_t head, int64_t e) {
  const int64_t first = part == 'q' ? 0 : part == 'k' ? h.n_head : h.n_head + h.n_kv_head;
  return (first + head) * h.head_dim + e;
}

Array naive_attention(const Array& qkv, const Heads& h) {
  const auto score = [&](int64_t b, int64_t head, int64_t i, int64_t j) {
    double sum = 0;
    const int64_t kv = head / (h.n_head / h.n_kv_head);
    for (int64_t e = 0; e < h.head_dim; ++e)
      sum += qkv({b, i, packed_at(h, 'q', head, e)}) * qkv({b, j, packed_at(h, 'k', kv, e)});
    return sum / std::sqrt(static_cast<double>(h.head_dim));
  };
  Array y{{qkv.shape[0], qkv.shape[1], h.n_head * h.head_dim}, {}};
  for (int64_t b = 0; b < y.shape[0]; ++b)
    for (int64_t i = 0; i < y.shape[1]; ++i)
      for (int64_t head = 0; head < h.n_head; ++head) {
        std::vector<double> p;
        for (int64_t j = 0; j <= i; ++j) p.push_back(std::exp(score(b, head, i, j)));
        const double total = std::accumulate(p.begin(), p.end(), 0.0);
        const int64_t kv = head / (h.n_head / h.n_kv_head);
        for (int64_t e = 0; e < h.head_dim; ++e) {
          double o = 0;
          for (int64_t j = 0; j <= i; ++j)
            o += p[j] / total * qkv({b, j, packed_at(h, 'v', kv, e)});
          y.values.push_back(o);
        }
      }
  return y;
}

Case attention_row(const char* name, int64_t b, int64_t t, const Heads& h) {
  return {name,
          {{b, t, h.packed()}},
          [=](const Tensors& x) { return causal_attention(x[0], h); },
          [=](const Arrays& x) { return naive_attention(x[0], h); }};
}

Array naive_rope(const Array& x, const Heads& h, double theta) {
  const int64_t half = h.head_dim / 2, rotated = (h.n_head + h.n_kv_head) * h.head_dim;
  return build(x.shape, [&](const Index& i) {
    if (i[2] >= rotated) return x(i);
    const int64_t e = i[2] % h.head_dim, pair = e % half;
    const double angle =
        static_cast<double>(i[1]) / std::pow(theta, 2.0 * pair / static_cast<double>(h.head_dim));
    const double partner = x({i[0], i[1], e < half ? i[2] + half : i[2] - half});
    return x(i) * std::cos(angle) + (e < half ? -1 : 1) * partner * std::sin(angle);
  });
}

std::vector<Case> layer_rows() {
  static const StepScalars scalars{.step = 3, .first_sample = 5};
  const DropoutKey key{.stream = 42, .scalars = &scalars};
  const Heads rotary{.n_head = 2, .n_kv_head = 1, .head_dim = 4};
  const std::vector<int32_t> targets{0, 6, -1, 3, 3, 2};
  return {
      {.name = "embedding",
       .inputs = {{7, 3}},
       .op =
           [](const Tensors& x) {
             return embedding(x[0], ids_of({6, 0, 2, 6, 6, 1}, {2, 3}));
           },
       .naive =
           [](const Arrays& x) {
             const int64_t ids[2][3] = {{6, 0, 2}, {6, 6, 1}};
             return build({2, 3, 3}, [&](const Index& i) { return x[0]({ids[i[0]][i[1]], i[2]}); });
           },
       .any_strides = false},
      {"layer_norm",
       {{3, 19}, {19}, {19}},
       [](const Tensors& x) { return layer_norm(x[0], x[1], x[2], 1e-3f); },
       [](const Arrays& x) {
         const Array n = naive_norm(x[0], true, 1e-3);
         return build(n.shape, [&](const Index& i) { return n(i) * x[1](i) + x[2](i); });
       }},
      {"rms_norm",
       {{3, 19}, {19}},
       [](const Tensors& x) { return rms_norm(x[0], x[1], 1e-3f); },
       [](const Arrays& x) {
         const Array n = naive_norm(x[0], false, 1e-3);
         return build(n.shape, [&](const Index& i) { return n(i) * x[1](i); });
       }},
      {"softmax",
       {{4, 19}},
       [](const Tensors& x) { return softmax(x[0]); },
       [](const Arrays& x) {
         return build({4, 19}, [&](const Index& i) {
           double sum = 0;
           for (int64_t k = 0; k < 19; ++k) sum += std::exp(x[0]({i[0], k}));
           return std::exp(x[0](i)) / sum;
         });
       }},
      {"swiglu",
       {{2, 3, 10}},
       [](const Tensors& x) { return swiglu(x[0]); },
       [](const Arrays& x) {
         return build({2, 3, 5}, [&](const Index& i) {
           const double gate = x[0](i);
           return gate * naive_sigmoid(gate) * x[0]({i[0], i[1], i[2] + 5});
         });
       }},
      {"rope",
       {{2, 3, rotary.packed()}},
       [=](const Tensors& x) { return rope(x[0], rope_tables(8, 4, 100.0), rotary); },
       [=](const Arrays& x) { return naive_rope(x[0], rotary, 100.0); }},
      {"dropout",
       {{3, 17}},
       [=](const Tensors& x) { return dropout(x[0], 0.25f, key); },
       [=](const Arrays& x) {
         // Which elements stay is the op's choice; that it is one of (key, element) alone is
         // tested in op_facts_test.cpp.
         const std::vector<double> kept =
             values_of(dropout(make_tensor(std::vector(51, 1.0), {3, 17}, DType::f32), 0.25f, key));
         Array y = x[0];
         for (size_t i = 0; i < kept.size(); ++i) y.values[i] *= kept[i] != 0 ? 1 / 0.75 : 0.0;
         return y;
       }},
      attention_row("attention", 2, 5, {.n_head = 2, .n_kv_head = 2, .head_dim = 4}),
      attention_row("attention_grouped", 1, 4, {.n_head = 4, .n_kv_head = 2, .head_dim = 3}),
      attention_row("attention_long", 1, 35, {.n_head = 1, .n_kv_head = 1, .head_dim = 2}),
      {"cross_entropy",
       {{6, 5}, {7, 5}},
       [=](const Tensors& x) { return linear_cross_entropy(x[0], x[1], ids_of(targets, {6})); },
       [=](const Arrays& x) {
         const Array logits = naive_linear({x[0], x[1]}, {6, 7});
         double loss = 0;
         for (int64_t r = 0; r < 6; ++r) {
           if (targets[r] < 0) continue;
           double sum = 0;
           for (int64_t k = 0; k < 7; ++k) sum += std::exp(logits({r, k}));
           loss += std::log(sum) - logits({r, targets[r]});
         }
         return Array{{1}, {loss}};
       }},
  };
}

ROWS(linear);
ROWS(layer);

}  // namespace
}  // namespace lockstep::op_suite
