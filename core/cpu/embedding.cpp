// Embedding, rotary positions and dropout: what happens to rows of tokens between the matrices.
// Read next: attention.cpp.
#include "core/cpu/cpu_backend.h"
#include "core/cpu/rows.h"
#include "core/philox.h"

namespace lockstep {

void CpuBackend::embedding(const Tensor& table, const Tensor& ids, Tensor& y) {
  const int64_t n = ids.numel(), d = table.dim(1);
  const ThreadRows buffers(1, d);
  const int32_t* id = ids.data<int32_t>();
  const Source source(table);
  const Sink sink(y);
  parallel_pieces(n, 64, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      sink.write(source.read(id[t] * d, d, buffers[0]), t * d, d);
  });
}

// A work item owns a piece of the columns and goes through the tokens in order, so a row that
// several tokens share is summed in the same order on any number of threads.
void CpuBackend::embedding_grad(const Tensor& ids, const Tensor& dy, Tensor& dtable,
                                bool accumulate) {
  if (!accumulate) fill(dtable, 0.0f);
  const int64_t n = ids.numel(), d = dtable.dim(1);
  constexpr int64_t columns = 64;
  const int32_t* id = ids.data<int32_t>();
  const Source source(dy);
  const Sink sink(dtable, true);
  parallel_pieces(d, columns, [&](int64_t begin, int64_t end) {
    float buffer[columns];
    for (int64_t t = 0; t < n; ++t)
      sink.write(source.read(t * d + begin, end - begin, buffer), id[t] * d + begin, end - begin);
  });
}

void CpuBackend::rope(const Tensor& x, const Tensor& cos, const Tensor& sin, const Heads& heads,
                      bool inverse, Tensor& y, bool accumulate) {
  const int64_t b = x.dim(0), t = x.dim(1), packed = heads.packed(), half = heads.head_dim / 2;
  const int64_t rotated = heads.n_head + heads.n_kv_head;  // queries and keys; values follow
  const ThreadRows buffers(2, packed);
  const Source source(x);
  const Sink sink(y, accumulate);
  const float *cosines = cos.data<float>(), *sines = sin.data<float>();
  const float sign = inverse ? -1.0f : 1.0f;
  parallel_pieces(b * t, rows_per_piece, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* in = source.read(row * packed, packed, buffers[0]);
      float* out = buffers[1];
      const float *c = cosines + row % t * half, *s = sines + row % t * half;
      for (int64_t head = 0; head < rotated; ++head) {
        const float *x1 = in + head * heads.head_dim, *x2 = x1 + half;
        float *y1 = out + head * heads.head_dim, *y2 = y1 + half;
#pragma omp simd
        for (int64_t i = 0; i < half; ++i) {
          y1[i] = x1[i] * c[i] - sign * x2[i] * s[i];
          y2[i] = x2[i] * c[i] + sign * x1[i] * s[i];
        }
      }
      std::copy(in + rotated * heads.head_dim, in + packed, out + rotated * heads.head_dim);
      sink.write(out, row * packed, packed);
    }
  });
}

void CpuBackend::dropout(const Tensor& x, float p, const DropoutKey& key, Tensor& y,
                         bool accumulate) {
  if (x.numel() == 0) return;
  const int64_t samples = x.dim(0), per_sample = x.numel() / samples;
  constexpr int64_t grain = 1024;  // a multiple of the four words of one draw
  const int64_t pieces = (per_sample + grain - 1) / grain;
  const Source source(x);
  const Sink sink(y, accumulate);
  const float kept_scale = 1.0f / (1.0f - p);
  const StepScalars& now = *key.scalars;
  parallel_for(samples * pieces, [&](int64_t piece) {
    const int64_t sample = piece / pieces, begin = piece % pieces * grain;
    const int64_t n = std::min(grain, per_sample - begin), offset = sample * per_sample + begin;
    float buffer[grain], out[grain];
    const float* in = source.read(offset, n, buffer);
    for (int64_t i = 0; i < n; i += 4) {
      const auto words =
          dropout_words(key.stream, now.step, now.first_sample + sample, (begin + i) / 4);
      for (int64_t j = i; j < std::min(i + 4, n); ++j)
        out[j] = to_unit_float(words[j - i]) < p ? 0.0f : in[j] * kept_scale;
    }
    sink.write(out, offset, n);
  });
}

}  // namespace lockstep
