// Causal attention in tiles with an online softmax, and its gradient from the kept log-sum-exp (Dao
// et al., "FlashAttention", 2022, algorithms 1 and 4). A tile of scores is kept transposed, [keys,
// queries]: what belongs to a query (maximum, sum, log-sum-exp, delta) is then a vector beside it,
// and no step adds up the lanes of a vector. Tiles above the diagonal are never computed; a tile on
// it is done in strips of 16 rows that end at the diagonal.
#include <cmath>
#include <limits>

#include "core/cpu/cpu_backend.h"
#include "core/cpu/rows.h"
#include "core/cpu/tile.h"
#include "core/math.h"

namespace lockstep {

namespace {

constexpr int64_t tile = 64;  // queries or keys
constexpr int64_t strip = lanes;
// A head's rows lie a page apart. Waiting for them was a sixth of the time.
constexpr int rows_ahead = 4;  // with every four rows of a product

// A tile of one head's queries, or of its keys at the same positions.
struct Place {
  int64_t b, head, first, rows;
};

// Where the rows of tiles are in memory, and the sizes of padded buffers.
struct Layout {
  int64_t batch, t, d, packed, n_head, n_kv_head, group;
  int64_t o_row;   // elements from one row of o to the next, as `packed` in qkv
  int64_t wide;    // d padded
  int64_t padded;  // t padded
  float scale;

  Layout(const Tensor& qkv, const Heads& h)
      : batch(qkv.dim(0)),
        t(qkv.dim(1)),
        d(h.head_dim),
        packed(h.packed()),
        n_head(h.n_head),
        n_kv_head(h.n_kv_head),
        group(h.n_head / h.n_kv_head),
        o_row(h.n_head * h.head_dim),
        wide(round_up(d, lanes)),
        padded(round_up(t, tile)),
        scale(1.0f / std::sqrt(static_cast<float>(d))) {}
  Place place(int64_t b, int64_t head, int64_t first) const {
    return {b, head, first, std::min(tile, t - first)};
  }
  // The one that is worked on next; b = batch after the last.
  Place after(const Place& p) const {
    if (p.first + tile < t) return place(p.b, p.head, p.first + tile);
    return p.head + 1 < n_head ? place(p.b, p.head + 1, 0) : place(p.b + 1, 0, 0);
  }
  int64_t q(const Place& p) const { return (p.b * t + p.first) * packed + p.head * d; }
  int64_t k(const Place& p) const {
    return (p.b * t + p.first) * packed + (n_head + p.head / group) * d;
  }
  int64_t v(const Place& p) const { return k(p) + n_kv_head * d; }
  int64_t o(const Place& p) const { return (p.b * t + p.first) * o_row + p.head * d; }
  int64_t lse(const Place& p) const { return (p.b * n_head + p.head) * t + p.first; }
};

// Takes consecutive 64-byte aligned buffers out of one thread's scratch row.
struct Carve {
  float* next;
  float* operator()(int64_t rows, int64_t width) {
    float* p = next;
    next += round_up(rows * width, lanes);
    return p;
  }
};

// y [tile, wide] = rows of d elements, `step` apart in the source, with zeros around them.
void pack(const Source& x, int64_t offset, int64_t step, int64_t rows, const Layout& at, float* y) {
  for (int64_t r = 0; r < tile; ++r, y += at.wide) {
    const int64_t n = r < rows ? at.d : 0;
    if (n > 0) {
      const float* in = x.read(offset + r * step, n, y);
      if (in != y) std::copy_n(in, n, y);
    }
    std::fill(y + n, y + at.wide, 0.0f);
  }
}

void unpack(const float* x, const Layout& at, int64_t rows, const Sink& y, int64_t offset,
            int64_t step) {
  for (int64_t r = 0; r < rows; ++r) y.write(x + r * at.wide, offset + r * step, at.d);
}

// scores [keys, queries] = a [keys, wide] b [wide, queries], below the diagonal only on a tile
// there.
void score_product(const Layout& at, bool diagonal, const float* a, const float* b, float* scores,
                   Ahead& ahead) {
  for (int64_t key = 0; key < tile; key += rows_at_once) {
    const int64_t first = diagonal ? key / strip * strip : 0;
    multiply(tile - first, at.wide, {a + key * at.wide, at.wide, 1}, b + first, tile,
             scores + key * tile + first, tile, false);
    ahead.some(rows_ahead);
  }
}

// y [queries, wide] += p^T x for p [keys, queries], x [keys, wide].
void add_per_query(const Layout& at, bool diagonal, const float* p, const float* x, float* y,
                   Ahead& ahead) {
  for (int64_t query = 0; query < tile; query += rows_at_once) {
    const int64_t keys = diagonal ? query / strip * strip + strip : tile;
    multiply(at.wide, keys, {p + query, 1, tile}, x, at.wide, y + query * at.wide, at.wide, true);
    ahead.some(rows_ahead);
  }
}

// y [keys, wide] += p x for p [keys, queries], x [queries, wide].
void add_per_key(const Layout& at, bool diagonal, const float* p, const float* x, float* y,
                 Ahead& ahead) {
  for (int64_t key = 0; key < tile; key += rows_at_once) {
    const int64_t first = diagonal ? key / strip * strip : 0;
    multiply(at.wide, tile - first, {p + key * tile + first, tile, 1}, x + first * at.wide, at.wide,
             y + key * at.wide, at.wide, true);
    ahead.some(rows_ahead);
  }
}

// On the diagonal, a key is hidden from the queries before it.
void hide_future(float* scores) {
  for (int64_t key = 1; key < tile; ++key)
    std::fill_n(scores + key * tile, key, -std::numeric_limits<float>::infinity());
}

// Running softmax of a tile's queries.
struct Online {
  alignas(64) float max[tile], sum[tile], shrink[tile];

  void start() {
    std::fill_n(max, tile, -std::numeric_limits<float>::infinity());
    std::fill_n(sum, tile, 0.0f);
  }

  // Turns scores into probabilities relative to the new maximum; `shrink` brings what was summed
  // before to the same scale.
  void add(float* scores) {
    alignas(64) float old[tile];
    std::copy_n(max, tile, old);
    for (int64_t key = 0; key < tile; ++key) {
      const float* s = scores + key * tile;
#pragma omp simd
      for (int64_t i = 0; i < tile; ++i) max[i] = s[i] > max[i] ? s[i] : max[i];
    }
#pragma omp simd
    for (int64_t i = 0; i < tile; ++i) {
      shrink[i] = fast_exp(old[i] - max[i]);
      sum[i] *= shrink[i];
    }
    for (int64_t key = 0; key < tile; ++key) {
      float* s = scores + key * tile;
#pragma omp simd
      for (int64_t i = 0; i < tile; ++i) {
        s[i] = fast_exp(s[i] - max[i]);
        sum[i] += s[i];
      }
    }
  }
};

void scale_row(float* x, float factor, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

float dot(const float* a, const float* b, int64_t n) {
  float s = 0;
#pragma omp simd reduction(+ : s)
  for (int64_t i = 0; i < n; ++i) s += a[i] * b[i];
  return s;
}

// p = e^(s - lse) in place of the scores, and ds = scale * p (dp - delta) in place of dp.
void score_gradient(float scale, const float* lse, const float* delta, float* p, float* dp) {
  for (int64_t key = 0; key < tile; ++key, p += tile, dp += tile) {
#pragma omp simd
    for (int64_t i = 0; i < tile; ++i) {
      p[i] = fast_exp(p[i] - lse[i]);
      dp[i] = scale * p[i] * (dp[i] - delta[i]);
    }
  }
}

}  // namespace

void CpuBackend::attention(const Tensor& qkv, const Heads& heads, Tensor& o, Tensor& lse) {
  const Layout at(qkv, heads);
  const Source source(qkv);
  const Sink sink(o);
  float* lses = lse.data<float>();
  const ThreadRows memory(1, 2 * at.padded * at.wide + 3 * tile * at.wide + tile * tile);
  parallel_for(at.batch * at.n_head, [&](int64_t item) {
    Carve carve{memory[0]};
    float *k = carve(at.padded, at.wide), *v = carve(at.padded, at.wide);
    float *q = carve(tile, at.wide), *qt = carve(at.wide, tile), *out = carve(tile, at.wide);
    float* scores = carve(tile, tile);
    Ahead ahead;

    for (int64_t first = 0; first < at.t; first += tile) {
      const Place here = at.place(item / at.n_head, item % at.n_head, first), next = at.after(here);
      pack(source, at.k(here), at.packed, here.rows, at, k + first * at.wide);
      pack(source, at.v(here), at.packed, here.rows, at, v + first * at.wide);
      pack(source, at.q(here), at.packed, here.rows, at, q);
      ahead.start();
      ahead.add(sink, at.o(here), at.o_row, here.rows, at.d);
      if (next.b < at.batch)
        for (const int64_t offset : {at.q(next), at.k(next), at.v(next)})
          ahead.add(source, offset, at.packed, next.rows, at.d);
      transpose(tile, at.wide, q, at.wide, at.scale, qt, tile);
      std::fill_n(out, tile * at.wide, 0.0f);
      Online softmax;
      softmax.start();

      for (int64_t key = 0; key <= first; key += tile) {
        const bool diagonal = key == first;
        score_product(at, diagonal, k + key * at.wide, qt, scores, ahead);
        if (diagonal) hide_future(scores);
        softmax.add(scores);
        for (int64_t i = 0; key > 0 && i < tile; ++i)
          scale_row(out + i * at.wide, softmax.shrink[i], at.wide);
        add_per_query(at, diagonal, scores, v + key * at.wide, out, ahead);
      }
      for (int64_t i = 0; i < here.rows; ++i) {
        scale_row(out + i * at.wide, 1.0f / softmax.sum[i], at.wide);
        lses[at.lse(here) + i] = softmax.max[i] + std::log(softmax.sum[i]);
      }
      unpack(out, at, here.rows, sink, at.o(here), at.o_row);
    }
  });
}

// One work item per key head: its keys' and values' gradients are summed over the query heads of
// the group in order.
void CpuBackend::attention_grad(const Tensor& qkv, const Heads& heads, const Tensor& o,
                                const Tensor& lse, const Tensor& d_o, Tensor& dqkv,
                                bool accumulate) {
  const Layout at(qkv, heads);
  const Source source(qkv), o_source(o), do_source(d_o);
  const Sink sink(dqkv, accumulate);
  const float* lses = lse.data<float>();
  const ThreadRows memory(1, 4 * at.padded * at.wide + 6 * tile * at.wide + 2 * tile * tile);
  parallel_for(at.batch * at.n_kv_head, [&](int64_t item) {
    const int64_t b = item / at.n_kv_head, first_head = item % at.n_kv_head * at.group;
    Carve carve{memory[0]};
    float *k = carve(at.padded, at.wide), *v = carve(at.padded, at.wide);
    float *dk = carve(at.padded, at.wide), *dv = carve(at.padded, at.wide);
    float *q = carve(tile, at.wide), *qt = carve(at.wide, tile), *dq = carve(tile, at.wide);
    float *grad = carve(tile, at.wide), *grad_t = carve(at.wide, tile), *out = carve(tile, at.wide);
    float *p = carve(tile, tile), *dp = carve(tile, tile);
    alignas(64) float log_sum[tile], delta[tile];
    Ahead ahead;
    std::fill_n(dk, at.padded * at.wide, 0.0f);
    std::fill_n(dv, at.padded * at.wide, 0.0f);

    for (int64_t head = first_head; head < first_head + at.group; ++head)
      for (int64_t first = 0; first < at.t; first += tile) {
        const Place here = at.place(b, head, first), next = at.after(here);
        if (head == first_head) {
          pack(source, at.k(here), at.packed, here.rows, at, k + first * at.wide);
          pack(source, at.v(here), at.packed, here.rows, at, v + first * at.wide);
        }
        pack(source, at.q(here), at.packed, here.rows, at, q);
        pack(do_source, at.o(here), at.o_row, here.rows, at, grad);
        pack(o_source, at.o(here), at.o_row, here.rows, at, out);
        ahead.start();
        ahead.add(sink, at.q(here), at.packed, here.rows, at.d);
        if (next.b < at.batch) {
          for (const int64_t offset : {at.q(next), at.k(next), at.v(next)})
            ahead.add(source, offset, at.packed, next.rows, at.d);
          ahead.add(do_source, at.o(next), at.o_row, next.rows, at.d);
          ahead.add(o_source, at.o(next), at.o_row, next.rows, at.d);
        }
        for (const int64_t offset : {at.k(here), at.v(here)})
          ahead.add(sink, offset, at.packed, here.rows, at.d);
        transpose(tile, at.wide, q, at.wide, at.scale, qt, tile);
        transpose(tile, at.wide, grad, at.wide, 1.0f, grad_t, tile);
        std::fill_n(dq, tile * at.wide, 0.0f);
        for (int64_t i = 0; i < tile; ++i)
          delta[i] = dot(grad + i * at.wide, out + i * at.wide, at.wide);
        std::copy_n(lses + at.lse(here), here.rows, log_sum);
        std::fill(log_sum + here.rows, log_sum + tile, 0.0f);  // keeps the padding finite

        for (int64_t key = 0; key <= first; key += tile) {
          const bool diagonal = key == first;
          score_product(at, diagonal, k + key * at.wide, qt, p, ahead);
          if (diagonal) hide_future(p);
          score_product(at, diagonal, v + key * at.wide, grad_t, dp, ahead);
          score_gradient(at.scale, log_sum, delta, p, dp);
          add_per_key(at, diagonal, p, grad, dv + key * at.wide, ahead);
          add_per_key(at, diagonal, dp, q, dk + key * at.wide, ahead);
          add_per_query(at, diagonal, dp, k + key * at.wide, dq, ahead);
        }
        unpack(dq, at, here.rows, sink, at.q(here), at.packed);
      }
    const Place all = at.place(b, first_head, 0);
    unpack(dk, at, at.t, sink, at.k(all), at.packed);
    unpack(dv, at, at.t, sink, at.v(all), at.packed);
  });
}

}  // namespace lockstep
