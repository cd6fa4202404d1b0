// Codec `bf16`: every element rounded to the nearest bf16, ties to even; half the bytes. The rest
// is exact: the 16 bits that were rounded away. Elements above 3.39e38 become infinite.
#include "dist/codec.h"

namespace lockstep {

namespace {

class Bf16 final : public CellCodec {
 public:
  bool lossless() const override { return false; }

 private:
  size_t cell_bytes(int64_t n) const override { return n * sizeof(bf16); }

  void pack(const float* x, int64_t n, std::byte* wire) const override {
    bf16* narrow = reinterpret_cast<bf16*>(wire);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) narrow[i] = to_bf16(x[i]);
  }

  void unpack(const std::byte* wire, int64_t n, float* out) const override {
    const bf16* narrow = reinterpret_cast<const bf16*>(wire);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i] = to_float(narrow[i]);
  }
};

}  // namespace

std::unique_ptr<Codec> make_bf16(const CodecOptions&) {
  return std::make_unique<Bf16>();
}

}  // namespace lockstep
