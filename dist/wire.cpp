// Encoding and decoding runs, and their places in a part. Read next: carried.h.
#include "dist/wire.h"

#include <algorithm>

#include "core/backend.h"
#include "core/parallel.h"

namespace lockstep {

namespace {

const Codec& no_codec() {
  static const std::unique_ptr<Codec> none = make_codec("none", {});
  return *none;
}

}  // namespace

void WireRun::encode(float* x, std::byte* wire, const WireTail& tail, float* rest) const {
  const auto scale = [this](bool divide, float* values) {
    parallel_pieces(cells.elements, backend().piece(), [&](int64_t begin, int64_t end) {
      backend().scale_by_powers(powers + begin, divide, values + begin, end - begin);
    });
  };
  if (powers) scale(true, x);
  codec->encode(shape, x, wire, tail, rest);
  if (powers && rest) scale(false, rest);
}

void WireRun::decode(const std::byte* wire, int64_t at, int64_t count, float* out) const {
  if (const float* floats = codec->floats_in(wire))
    return backend().move(floats + at, out, count * sizeof(float));
  codec->decode(shape, wire, at / cell_size, cell_count(count), out);
  if (powers)
    parallel_pieces(count, backend().piece(), [&](int64_t begin, int64_t end) {
      backend().scale_by_powers(powers + at + begin, false, out + begin, end - begin);
    });
}

std::vector<WireRun> plan_runs(const ExchangeRules& rules, bool compressed,
                               const std::vector<NamedTensor>& parameters,
                               const std::vector<CellRun>& part) {
  std::vector<WireRun> runs;
  for (const CellRun& cells : part) {
    const Tensor& whole = parameters[cells.parameter].tensor;
    const bool packed = compressed && is_compressed(rules, whole);
    runs.push_back({cells,
                    {cells.elements, cells.cell * cell_size, whole.ndim() ? whole.dim(-1) : 1},
                    packed ? rules.codec.get() : &no_codec(),
                    packed});
  }
  return runs;
}

bool any_lossy(const std::vector<WireRun>& runs) {
  return std::ranges::any_of(runs, [](const WireRun& run) { return !run.codec->lossless(); });
}

bool with_tail(const ExchangeRules& rules, bool compressed) {
  return compressed && rules.codec && !rules.codec->fixed_size();
}

bool is_compressed(const ExchangeRules& rules, const Tensor& whole) {
  return rules.codec != nullptr && whole.ndim() >= 2 && whole.numel() >= rules.min_elements;
}

size_t wire_bytes(const ExchangeRules& rules, const std::vector<NamedTensor>& parameters,
                  const std::vector<CellRun>& part) {
  return WirePart(plan_runs(rules, true, parameters, part), with_tail(rules, true)).capacity();
}

size_t wire_capacity(const ExchangeRules& rules, const std::vector<NamedTensor>& parameters,
                     const std::vector<CellRun>& part) {
  return std::max(wire_bytes(rules, parameters, part),
                  WirePart(plan_runs(rules, false, parameters, part), false).capacity());
}

WirePart::WirePart(const std::vector<WireRun>& runs, bool with_tail) : with_tail_(with_tail) {
  uint64_t at = with_tail ? wire_aligned(sizeof at) : 0;
  for (const WireRun& run : runs) {
    begins_.push_back(at);
    at += run.codec->place_bytes(run.shape);
    most_in_tail_ += run.codec->capacity(run.shape) - run.codec->place_bytes(run.shape);
  }
  begins_.push_back(at);
}

}  // namespace lockstep
