// What of a bucket travels and as which bytes: the runs of a part, one after the other, each as its
// codec or as plain fp32. It sends nothing and sums nothing, and keeps nothing from one step to the
// next. Read next: wire.cpp, then staged_exchange.cpp, which uses it.
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "dist/bucket_exchange.h"
#include "dist/buckets.h"
#include "dist/codec.h"
#include "dist/communicator.h"

namespace lockstep {

// A run with its codec.
struct WireRun {
  CellRun cells;
  CodecRun shape;
  const Codec* codec;
  bool compressed;                  // else it travels as plain fp32
  const uint8_t* powers = nullptr;  // by element: what x is divided by on the wire

  // x and rest, or null, [n] in pieces: as the codec's own, but x is left divided. Returns the
  // bytes written.
  size_t encode(float* x, std::byte* wire, float* rest) const;
  // Elements [at, at + count), whole cells, of the run.
  void decode(const std::byte* wire, int64_t at, int64_t count, float* out) const;
};

// The runs of a part; without `compressed`, all as plain fp32.
std::vector<WireRun> plan_runs(const ExchangeRules& rules, bool compressed,
                               const std::vector<NamedTensor>& parameters,
                               const std::vector<CellRun>& part);
bool any_lossy(const std::vector<WireRun>& runs);

// Whether the codec encodes the gradient of this parameter; else it travels as fp32.
bool is_compressed(const ExchangeRules& rules, const Tensor& whole);

// Bytes of a part's encoding at most: with the codec, and of both that and plain fp32.
size_t wire_bytes(const ExchangeRules& rules, const std::vector<NamedTensor>& parameters,
                  const std::vector<CellRun>& part);
size_t wire_capacity(const ExchangeRules& rules, const std::vector<NamedTensor>& parameters,
                     const std::vector<CellRun>& part);

// A part on the wire: its runs, one after the other. Where a codec makes them as long as it likes,
// a table in front says where each begins, so that a reader finds them whoever wrote them.
class WirePart {
 public:
  explicit WirePart(const std::vector<WireRun>& runs);  // which outlive this

  size_t capacity() const { return begins_.back(); }
  const std::byte* begin_of(ByteView part, size_t run) const {
    uint64_t at = begins_[run];
    if (with_table_) std::memcpy(&at, part.data() + run * sizeof at, sizeof at);
    return part.data() + at;
  }

  // encode(run index, where) returns the bytes it took; the sum of all is returned.
  template <class Encode>
  size_t write(std::span<std::byte> part, Encode&& encode) const {
    uint64_t at = begins_[0];
    for (size_t i = 0; i < runs_.size(); ++i) {
      if (with_table_) std::memcpy(part.data() + i * sizeof at, &at, sizeof at);
      at += encode(i, part.data() + at);
    }
    return at;
  }

 private:
  std::span<const WireRun> runs_;
  const bool with_table_;
  std::vector<uint64_t> begins_;  // without a table; the last is the end
};

}  // namespace lockstep
