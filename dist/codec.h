// Codecs as dist uses them: by name, with options, on the backend where the data lie. What a codec
// does to cells is core/codecs.h's; who sends which cells where, and who keeps the residual from
// one step to the next (error feedback), is BucketExchange's matter. Read next: core/codecs/bf16.h,
// the shortest codec that loses something.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.h"

namespace lockstep {

class Codec {
 public:
  explicit Codec(const CellCodec& cells) : cells_(cells) {}

  // Decoding gives the bits that were encoded.
  bool lossless() const;

  // As in core/codecs.h: bytes of a run at its own place, and at most.
  size_t place_bytes(const CodecRun& run) const { return lockstep::place_bytes(cells_, run); }
  size_t capacity(const CodecRun& run) const { return lockstep::capacity(cells_, run); }

  // Every run takes its capacity, whatever is in it, and needs no tail.
  bool fixed_size() const { return !std::holds_alternative<codec::Rows>(cells_); }
  // The fp32 elements of a run, if its encoding is just that: nothing to decode.
  const float* floats_in(const std::byte* wire) const {
    return std::holds_alternative<codec::None>(cells_) ? reinterpret_cast<const float*>(wire)
                                                       : nullptr;
  }

  // As Backend::encode and decode, on this thread's backend: the data lie where it computes.
  void encode(const CodecRun& run, const float* x, std::byte* wire, const WireTail& tail,
              float* rest) const {
    backend().encode(cells_, run, x, wire, tail, rest);
  }
  // A run alone, its tail behind it, in memory of the host. Returns the bytes of both.
  size_t encode_alone(const CodecRun& run, const float* x, std::byte* wire, float* rest) const {
    uint64_t used = place_bytes(run);
    encode(run, x, wire, {wire, &used}, rest);
    return used;
  }
  void decode(const CodecRun& run, const std::byte* wire, int64_t first, int64_t count,
              float* out) const {
    backend().decode(cells_, run, wire, first, count, out);
  }

 private:
  CellCodec cells_;
};

struct CodecEntry {
  const char* name;
  const char* help;
  std::unique_ptr<Codec> (*make)(const CodecOptions& options);
};

// A row for each codec in core/codecs.h.
std::span<const CodecEntry> codec_table();
std::vector<std::string_view> codec_names();
std::string codec_summary();  // one line: every codec with its help

// Exit::config if there is no such codec, or an option that it uses has no meaning.
std::unique_ptr<Codec> make_codec(const std::string& name, const CodecOptions& options);

}  // namespace lockstep
