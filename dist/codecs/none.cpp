// Codec `none`: fp32 as it is, for when the network is faster than any codec.
#include <cstring>

#include "dist/codec.h"

namespace lockstep {

namespace {

class None final : public CellCodec {
 public:
  bool lossless() const override { return true; }

 private:
  size_t cell_bytes(int64_t n) const override { return n * sizeof(float); }

  void pack(const float* x, int64_t n, std::byte* wire) const override {
    std::memcpy(wire, x, cell_bytes(n));
  }

  void unpack(const std::byte* wire, int64_t n, float* out) const override {
    std::memcpy(out, wire, cell_bytes(n));
  }
};

}  // namespace

std::unique_ptr<Codec> make_none(const CodecOptions&) {
  return std::make_unique<None>();
}

}  // namespace lockstep
