// Codec `none`: fp32 as it is, for when the network is faster than any codec. The one codec that is
// nothing but moving, and so works wherever the gradients lie.
#include "core/parallel.h"
#include "dist/codec.h"

namespace lockstep {

namespace {

class None final : public Codec {
 public:
  bool lossless() const override { return true; }
  bool fixed_size() const override { return true; }
  size_t capacity(const CodecRun& run) const override {
    return wire_aligned(bytes_of(run.elements));
  }

  const float* plain(const std::byte* wire) const override {
    return reinterpret_cast<const float*>(wire);
  }

  size_t encode(const CodecRun& run, const float* x, std::byte* wire, float* rest) const override {
    parallel_pieces(run.elements, backend().piece(), [&](int64_t begin, int64_t end) {
      backend().move(x + begin, wire + bytes_of(begin), bytes_of(end - begin));
    });
    const size_t used = bytes_of(run.elements);
    backend().zero(wire + used, capacity(run) - used);
    if (rest) backend().zero(rest, used);
    return capacity(run);
  }

  void decode_cell(const CodecRun& run, const std::byte* wire, int64_t cell,
                   float* out) const override {
    backend().move(plain(wire) + cell * cell_size, out, bytes_of(run.cell_elements(cell)));
  }

 private:
  static size_t bytes_of(int64_t elements) { return elements * sizeof(float); }
};

}  // namespace

std::unique_ptr<Codec> make_none(const CodecOptions&) {
  return std::make_unique<None>();
}

}  // namespace lockstep
