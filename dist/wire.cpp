// Read next: staged_exchange.cpp.
#include "dist/wire.h"

#include <algorithm>

#include "core/backend.h"
#include "core/parallel.h"

namespace lockstep {

namespace {

const Codec& plain_codec() {
  static const std::unique_ptr<Codec> plain = make_codec("none", {});
  return *plain;
}

}  // namespace

size_t WireRun::encode(float* x, std::byte* wire, float* rest) const {
  const auto scale = [this](bool divide, float* values) {
    parallel_pieces(cells.elements, backend().piece(), [&](int64_t begin, int64_t end) {
      backend().scale_by_powers(powers + begin, divide, values + begin, end - begin);
    });
  };
  if (powers) scale(true, x);
  const size_t bytes = codec->encode(shape, x, wire, rest);
  if (powers && rest) scale(false, rest);
  return bytes;
}

void WireRun::decode(const std::byte* wire, int64_t at, int64_t count, float* out) const {
  if (const float* plain = codec->plain(wire))
    return backend().move(plain + at, out, count * sizeof(float));
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
                    packed ? rules.codec.get() : &plain_codec(),
                    packed});
  }
  return runs;
}

bool any_lossy(const std::vector<WireRun>& runs) {
  return std::ranges::any_of(runs, [](const WireRun& run) { return !run.codec->lossless(); });
}

bool is_compressed(const ExchangeRules& rules, const Tensor& whole) {
  return rules.codec != nullptr && whole.ndim() >= 2 && whole.numel() >= rules.min_elements;
}

size_t wire_bytes(const ExchangeRules& rules, const std::vector<NamedTensor>& parameters,
                  const std::vector<CellRun>& part) {
  return WirePart(plan_runs(rules, true, parameters, part)).capacity();
}

size_t wire_capacity(const ExchangeRules& rules, const std::vector<NamedTensor>& parameters,
                     const std::vector<CellRun>& part) {
  return std::max(wire_bytes(rules, parameters, part),
                  WirePart(plan_runs(rules, false, parameters, part)).capacity());
}

WirePart::WirePart(const std::vector<WireRun>& runs)
    : runs_(runs),
      with_table_(
          std::ranges::any_of(runs, [](const WireRun& run) { return !run.codec->fixed_size(); })) {
  uint64_t at = with_table_ ? wire_aligned(runs.size() * sizeof at) : 0;
  for (const WireRun& run : runs) {
    begins_.push_back(at);
    at += run.codec->capacity(run.shape);
  }
  begins_.push_back(at);
}

}  // namespace lockstep
