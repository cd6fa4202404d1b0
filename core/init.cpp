// Normal deviates by the method of Box and Muller (1958), in double: a pair of uniform numbers
// gives a pair of normal ones. One Philox block of four words serves four elements.
#include "core/init.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/parallel.h"
#include "core/philox.h"

namespace lockstep {

namespace {

constexpr int64_t piece = int64_t{1} << 18;  // elements drawn at once, a multiple of 4

// Elements [first, first + n) of the tensor.
template <class T>
void draw(const Philox& philox, double std, int64_t first, int64_t n, T* values) {
  parallel_pieces((n + 3) / 4, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const std::array<uint32_t, 4> words = philox(static_cast<uint64_t>(first / 4 + block));
      for (int64_t i = 4 * block; i < std::min(n, 4 * block + 4); ++i) {
        const int64_t pair = i % 4 / 2 * 2;
        const double radius = std::sqrt(-2.0 * std::log(to_open_unit(words[pair])));
        const double angle = 2.0 * std::numbers::pi * to_open_unit(words[pair + 1]);
        const double z = radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
        values[i] = from_float<T>(static_cast<float>(std * z));
      }
    }
  });
}

template <class T>
void fill_normal(Tensor& t, uint64_t key, double std) {
  const Philox philox(key);
  std::vector<T> values(static_cast<size_t>(std::min(piece, t.numel())));
  for (int64_t at = 0; at < t.numel(); at += piece) {
    const int64_t n = std::min(piece, t.numel() - at);
    draw(philox, std, at, n, values.data());
    t.storage()->memory().write(t.data<T>() + at, values.data(), n * sizeof(T));
  }
}

}  // namespace

void normal_(Tensor& t, uint64_t seed, std::string_view name, double std) {
  check(t.contiguous() && (t.dtype() == DType::f32 || t.dtype() == DType::bf16),
        "[normal_] {}; contiguous f32 or bf16 is right", to_string(t));
  const uint64_t key = stream_key(seed, name);
  if (t.dtype() == DType::f32)
    fill_normal<float>(t, key, std);
  else
    fill_normal<bf16>(t, key, std);
}

}  // namespace lockstep
