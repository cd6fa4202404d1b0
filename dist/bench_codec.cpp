// Something like a gradient, encoded and decoded on every rank. Read next:
// ../examples/bench_comm_command.cpp.
#include "dist/bench_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/parallel.h"
#include "dist/buckets.h"

namespace lockstep {

namespace {

constexpr int64_t kRow = 512;

// Like a gradient: symmetric, and most elements far smaller than the largest. Each hash of i gives
// a number in [-1, 1), and its cube is heavy near zero.
float dense_gradient(int64_t i) {
  uint64_t h = static_cast<uint64_t>(i + 1) * 0x9e3779b97f4a7c15u;
  h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
  const float u = static_cast<float>(static_cast<int32_t>(h >> 32)) * 0x1p-31f;
  return 1e-3f * u * u * u;
}

// Of every 1 / touched rows one, evenly spread.
bool is_touched(int64_t row, double touched) {
  return std::floor(static_cast<double>(row + 1) * touched) >
         std::floor(static_cast<double>(row) * touched);
}

struct CodecCase {
  const Codec& codec;
  CodecRun run;
  std::vector<float> x, rest, decoded;
  std::vector<std::byte> memory;
  size_t used = 0;

  CodecCase(const Codec& c, int64_t elements)
      : codec(c),
        run{elements, 0, kRow},
        x(elements),
        rest(elements),
        decoded(elements),
        memory(codec.capacity(run) + 15) {}

  std::byte* wire() { return memory.data() + (-reinterpret_cast<uintptr_t>(memory.data()) & 15u); }
  void encode() {
    used = codec.encode_alone(run, x.data(), wire(), codec.lossless() ? nullptr : rest.data());
  }
  void decode() { codec.decode(run, wire(), 0, run.cells(), decoded.data()); }
  // Sent + rest = x up to the rounding of the rest; bit for bit where there is none.
  int64_t wrong() const {
    int64_t wrong = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (codec.lossless())
        wrong += std::bit_cast<uint32_t>(decoded[i]) != std::bit_cast<uint32_t>(x[i]);
      else
        wrong += !(std::fabs(double{decoded[i]} + rest[i] - x[i]) <= 0x1p-24 * std::fabs(rest[i]));
    }
    return wrong;
  }
};

BenchCodecRow bench_row(Communicator& communicator, const CodecEntry& entry, size_t bytes,
                        const BenchCodecOptions& options, const BenchCommOptions& sizes) {
  const auto codec = entry.make(options.codec_options);
  CodecCase c(*codec, static_cast<int64_t>(bytes / sizeof(float)));
  parallel_for(c.run.elements, [&](int64_t i) {
    c.x[i] = is_touched(i / kRow, options.touched) ? dense_gradient(i) : 0.0f;
  });
  BenchCodecRow row{entry.name, c.x.size() * sizeof(float), 0, {}, {}, -1};
  const auto time = [&](const std::function<void()>& body) {
    return time_slowest_rank(communicator, sizes.warmup, sizes.iterations,
                             [&] { return seconds_of(body); });
  };
  row.encode = time([&] { c.encode(); });
  row.decode = time([&] { c.decode(); });
  row.wire_bytes = c.used;
  if (sizes.check) row.wrong = sum_over_ranks(communicator, c.wrong());
  return row;
}

}  // namespace

double BenchCodecRow::break_even_gb_s() const {
  if (wire_bytes >= bytes) return 0;
  return static_cast<double>(bytes - wire_bytes) / (encode.median_us + decode.median_us) * 1e-3;
}

std::vector<BenchCodecRow> bench_codec(Communicator& communicator, const BenchCodecOptions& options,
                                       const BenchCommOptions& sizes,
                                       const std::function<void(const BenchCodecRow&)>& on_row) {
  const bool all = options.codec == "all";
  if (!all) make_codec(options.codec, options.codec_options);
  std::vector<BenchCodecRow> rows;
  for (size_t bytes : bench_sizes(sizes)) {
    for (const CodecEntry& entry : codec_table()) {
      if (!all && options.codec != entry.name) continue;
      rows.push_back(bench_row(communicator, entry, bytes, options, sizes));
      if (on_row) on_row(rows.back());
    }
  }
  return rows;
}

std::string bench_codec_header() {
  return fmt::format(
      "{:>8} {:>12} {:>12} {:>7} | {:>9} {:>8} | {:>9} {:>8} | {:>10} {:>6}\n"
      "{:>8} {:>12} {:>12} {:>7} | {:>9} {:>8} | {:>9} {:>8} | {:>10} {:>6}",
      "codec", "size", "wire", "ratio", "encode", "", "decode", "", "pays below", "#wrong", "",
      "(B)", "(B)", "", "(ms)", "(Gbit/s)", "(ms)", "(Gbit/s)", "(Gbit/s)", "");
}

std::string bench_codec_line(const BenchCodecRow& row) {
  const auto half = [&](const BenchTimes& t) {
    return fmt::format("{:>9.3f} {:>8.1f}", t.median_us * 1e-3,
                       8e-3 * static_cast<double>(row.bytes) / t.median_us);
  };
  const double rate = 8 * row.break_even_gb_s();
  return fmt::format("{:>8} {:>12} {:>12} {:>7.2f} | {} | {} | {:>10} {:>6}", row.codec, row.bytes,
                     row.wire_bytes, row.ratio(), half(row.encode), half(row.decode),
                     rate > 0 ? fmt::format("{:.1f}", rate) : "never",
                     row.wrong < 0 ? "n/a" : std::to_string(row.wrong));
}

}  // namespace lockstep
