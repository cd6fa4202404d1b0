// What of a bucket travels and as which bytes: the runs of a part, one after the other, each as its
// codec or as plain fp32. It sends nothing and sums nothing, and keeps nothing from one step to the
// next. Read next: wire.cpp, carried.h.
#pragma once

#include <span>
#include <vector>

#include "core/backend.h"
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

  // As the codec's own encode, of x [n] and rest [n] or null; with powers, x is left divided.
  void encode(float* x, std::byte* wire, const WireTail& tail, float* rest) const;
  // Elements [at, at + count), whole cells, of the run.
  void decode(const std::byte* wire, int64_t at, int64_t count, float* out) const;
};

// The runs of a part; without `compressed`, all as plain fp32.
std::vector<WireRun> plan_runs(const ExchangeRules& rules, bool compressed,
                               const std::vector<NamedTensor>& parameters,
                               const std::vector<CellRun>& part);
bool any_lossy(const std::vector<WireRun>& runs);

// Whether parts have a tail, as WirePart says.
bool with_tail(const ExchangeRules& rules, bool compressed);

// Whether the codec encodes the gradient of this parameter; else it travels as fp32.
bool is_compressed(const ExchangeRules& rules, const Tensor& whole);

// The most bytes that a part takes with the codec; and with or without it, for which its window
// must have room.
size_t wire_bytes(const ExchangeRules& rules, const std::vector<NamedTensor>& parameters,
                  const std::vector<CellRun>& part);
size_t wire_capacity(const ExchangeRules& rules, const std::vector<NamedTensor>& parameters,
                     const std::vector<CellRun>& part);

// A part on the wire: its runs, one after the other, each at a place that both ends know. With a
// tail, the part begins with the number of bytes that it uses, and behind the places stands what
// takes as many as it needs: how many is known where the data lie, and the host may not have seen.
class WirePart {
 public:
  WirePart(const std::vector<WireRun>& runs, bool with_tail);

  size_t capacity() const { return end_of_places() + most_in_tail_; }
  uint64_t end_of_places() const { return begins_.back(); }
  const std::byte* begin_of(ByteView part, size_t run) const { return part.data() + begins_[run]; }

  // encode(run index, its place, the tail). `end`: end_of_places(), where the data lie; only read
  // if there is a tail. Returns the bytes used, as Communicator takes them.
  template <class Encode>
  size_t write(std::span<std::byte> part, const uint64_t* end, Encode&& encode) const {
    WireTail tail;
    if (with_tail_) {
      backend().move(end, part.data(), sizeof *end);
      tail = {part.data(), reinterpret_cast<uint64_t*>(part.data())};
    }
    for (size_t i = 0; i + 1 < begins_.size(); ++i) encode(i, part.data() + begins_[i], tail);
    return with_tail_ ? told_by_part : end_of_places();
  }

 private:
  const bool with_tail_;
  std::vector<uint64_t> begins_;  // by run; the last is the end of all
  size_t most_in_tail_ = 0;
};

}  // namespace lockstep
