// The engine of `trainer bench comm --codec`: what a codec costs in time and saves in bytes. No
// byte travels here; every rank encodes and decodes at the same time, as in training, where they
// share the memory's bandwidth, on its num_threads() threads. Read next: codec.h.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dist/bench_comm.h"
#include "dist/codec.h"

namespace lockstep {

struct BenchCodecOptions {
  std::string codec = "all";  // or a name of the table
  CodecOptions codec_options;
  double touched = 1;  // share of the rows of 512 elements that are not zero
};

struct BenchCodecRow {
  std::string codec;
  size_t bytes = 0;  // of the gradient in fp32
  size_t wire_bytes = 0;
  BenchTimes encode;  // with the rest, where there is one
  BenchTimes decode;
  int64_t wrong = -1;  // elements, over all ranks, for which sent + rest is not x; -1: not checked

  double ratio() const { return static_cast<double>(bytes) / static_cast<double>(wire_bytes); }
  // Below this rate, in bytes of fp32 gradient per second (algbw of the exchange alone), the codec
  // pays: fp32 bytes / B = wire bytes / B + encode + decode. 0: it saves nothing.
  double break_even_gb_s() const;
};

// Collective. Sizes, iterations and whether to check are those of `sizes`. Exit::config for an
// unknown codec.
std::vector<BenchCodecRow> bench_codec(
    Communicator& communicator, const BenchCodecOptions& options, const BenchCommOptions& sizes,
    const std::function<void(const BenchCodecRow&)>& on_row = {});

std::string bench_codec_header();
std::string bench_codec_line(const BenchCodecRow& row);

}  // namespace lockstep
