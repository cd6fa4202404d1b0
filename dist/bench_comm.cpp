// The table of collectives, and how one is timed and checked. Read next: bench_codec.h.
#include "dist/bench_comm.h"

#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace lockstep {

namespace {

// Small integers: any order of summation gives the same float, so every wrong bit is an error.
float contribution(int rank, size_t i) {
  return static_cast<float>((i * 7 + rank * 13) % 17) - 8;
}

float sum_of_contributions(int ranks, size_t i) {
  float sum = 0;
  for (int r = 0; r < ranks; ++r) sum += contribution(r, i);
  return sum;
}

// One size: memory of both kinds with the same parts, and who owns what.
struct Case {
  Communicator& communicator;
  WindowPtr window;
  std::vector<int> counts, offsets;  // floats per part, for MPI
  size_t count;
  std::vector<float> input, result;  // MPI's; the input is empty when in place

  Case(Communicator& c, size_t bytes, bool out_of_place)
      : communicator(c),
        count(bytes / sizeof(float)),
        input(out_of_place ? count : 0),
        result(count) {
    const auto parts = even_parts(count, sizeof(float), c.size(), 16);
    window = c.window(fmt::format("bench {}", bytes), parts);
    window->fold_with(sum_floats);
    for (int r = 0; r < c.size(); ++r) {
      counts.push_back(static_cast<int>(parts[r] / sizeof(float)));
      offsets.push_back(static_cast<int>(window->part_offset(r) / sizeof(float)));
    }
  }
  // The whole input, or for gathering (offset: my part) what MPI expects in its stead.
  const void* mpi_input(size_t offset = 0) const {
    return input.empty() ? MPI_IN_PLACE : input.data() + offset;
  }
  int my_offset() const { return offsets[communicator.rank()]; }
  float* ours() { return reinterpret_cast<float*>(window->mine().data()); }
};

// A collective: one row here and in the table below is all it takes to add one.
struct Collective {
  const char* name;
  double (*bus_factor)(double ranks);
  void (*ours)(Case&);
  void (*mpi)(Case&);
  // The result at element i, or NaN where the collective leaves nothing this rank may rely on.
  float (*expected)(const Case&, size_t i);
};

int owner_of(const Case& c, size_t i) {
  int r = 0;
  while (i >= static_cast<size_t>(c.offsets[r]) + c.counts[r]) ++r;
  return r;
}

const Collective kCollectives[] = {
    {"all_reduce", [](double n) { return 2 * (n - 1) / n; },
     [](Case& c) { all_reduce_floats(c.communicator, c.window).wait(); },
     [](Case& c) {
       MPI_Allreduce(c.mpi_input(), c.result.data(), static_cast<int>(c.count), MPI_FLOAT, MPI_SUM,
                     MPI_COMM_WORLD);
     },
     [](const Case& c, size_t i) { return sum_of_contributions(c.communicator.size(), i); }},
    {"reduce_scatter", [](double n) { return (n - 1) / n; },
     [](Case& c) { reduce_scatter_floats(c.communicator, c.window).wait(); },
     [](Case& c) {
       float* mine = c.result.data() + c.my_offset();
       float* out = c.input.empty() ? c.result.data() : mine;  // in place, MPI puts it at the front
       MPI_Reduce_scatter(c.mpi_input(), out, c.counts.data(), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
       if (out != mine) std::memmove(mine, out, c.counts[c.communicator.rank()] * sizeof(float));
     },
     [](const Case& c, size_t i) {
       return owner_of(c, i) == c.communicator.rank()
                  ? sum_of_contributions(c.communicator.size(), i)
                  : NAN;
     }},
    {"all_gather", [](double n) { return (n - 1) / n; },
     [](Case& c) { c.communicator.gather(c.window).wait(); },
     [](Case& c) {
       MPI_Allgatherv(c.mpi_input(c.my_offset()), c.counts[c.communicator.rank()], MPI_FLOAT,
                      c.result.data(), c.counts.data(), c.offsets.data(), MPI_FLOAT,
                      MPI_COMM_WORLD);
     },
     [](const Case& c, size_t i) { return contribution(owner_of(c, i), i); }},
    {"broadcast", [](double) { return 1.0; },
     [](Case& c) { c.communicator.broadcast(c.window, 0).wait(); },
     [](Case& c) {
       MPI_Bcast(c.result.data(), static_cast<int>(c.count), MPI_FLOAT, 0, MPI_COMM_WORLD);
     },
     [](const Case&, size_t i) { return contribution(0, i); }},
};

// Runs once on fresh inputs and counts, over all ranks, the elements that came out wrong.
int64_t count_wrong(Case& c, const Collective& collective, float* buffer,
                    const std::function<void()>& run) {
  c.communicator.reclaim(c.window).wait();
  for (size_t i = 0; i < c.count; ++i) buffer[i] = contribution(c.communicator.rank(), i);
  if (!c.input.empty()) c.input.assign(buffer, buffer + c.count);
  c.communicator.barrier();
  run();
  int64_t wrong = 0;
  for (size_t i = 0; i < c.count; ++i) {
    const float expected = collective.expected(c, i);
    wrong += !std::isnan(expected) && buffer[i] != expected;
  }
  return sum_over_ranks(c.communicator, wrong);
}

// `run` returns the seconds it took here.
BenchCommTime measure(Case& c, const Collective& collective, const BenchCommOptions& options,
                      float* buffer, const std::function<double()>& run) {
  BenchCommTime result;
  if (options.check) result.wrong = count_wrong(c, collective, buffer, run);
  static_cast<BenchTimes&>(result) =
      time_slowest_rank(c.communicator, options.warmup, options.iterations, run);
  result.algbw = static_cast<double>(c.count * sizeof(float)) / result.median_us * 1e-3;
  result.busbw = result.algbw * collective.bus_factor(c.communicator.size());
  if (options.check) result.wrong += count_wrong(c, collective, buffer, run);
  return result;
}

BenchCommRow bench_row(Case& c, const Collective& collective, const BenchCommOptions& options) {
  BenchCommRow row{collective.name, c.count * sizeof(float), c.count, {}, {}};
  row.ours = measure(c, collective, options, c.ours(),
                     [&] { return seconds_of([&] { collective.ours(c); }); });
  if (c.communicator.backend() == "mpi") {
    row.mpi = measure(c, collective, options, c.result.data(), [&] {
      double seconds = 0;  // without the hop to MPI's thread: ours pays it, MPI need not
      c.communicator.call([&] { seconds = seconds_of([&] { collective.mpi(c); }); });
      return seconds;
    });
  }
  return row;
}

}  // namespace

std::vector<size_t> bench_sizes(const BenchCommOptions& options) {
  if (options.begin_bytes < sizeof(float) || options.end_bytes < options.begin_bytes ||
      !(options.factor > 1) || !std::isfinite(options.factor) || options.iterations < 1 ||
      options.warmup < 0)
    fail(Exit::usage,
         "[bench comm] begin {} B, end {} B, factor {}, {} iterations, {} warm-up: needs 4 B <= "
         "begin <= end, factor > 1, iterations >= 1, warm-up >= 0",
         options.begin_bytes, options.end_bytes, options.factor, options.iterations,
         options.warmup);
  std::vector<size_t> sizes;
  const auto next = [&](double bytes) {
    return options.step_bytes > 0 ? bytes + options.step_bytes : bytes * options.factor;
  };
  for (double bytes = options.begin_bytes; bytes <= options.end_bytes; bytes = next(bytes)) {
    const auto size = static_cast<size_t>(bytes);
    // Small steps would measure the same number of floats again and again.
    if (sizes.empty() || size / sizeof(float) > sizes.back() / sizeof(float)) sizes.push_back(size);
  }
  return sizes;
}

std::vector<BenchCommRow> bench_comm(Communicator& communicator, const BenchCommOptions& options,
                                     const std::function<void(const BenchCommRow&)>& on_row) {
  std::vector<BenchCommRow> rows;
  for (size_t bytes : bench_sizes(options)) {
    Case c(communicator, bytes, options.mpi_out_of_place);
    for (const Collective& collective : kCollectives) {
      rows.push_back(bench_row(c, collective, options));
      if (on_row) on_row(rows.back());
    }
  }
  return rows;
}

std::string bench_comm_header() {
  return fmt::format(
      "{:>14} {:>12} {:>11} | {:>10} {:>10} {:>10} {:>7} {:>7} {:>6} | {:>10} {:>10} {:>10} {:>7} "
      "{:>7} {:>6} | {:>7}\n"
      "{:>14} {:>12} {:>11} | {:>10} {:>10} {:>10} {:>7} {:>7} {:>6} | {:>10} {:>10} {:>10} {:>7} "
      "{:>7} {:>6} | {:>7}",
      "collective", "size", "count", "time", "min", "max", "algbw", "busbw", "#wrong", "MPI time",
      "min", "max", "algbw", "busbw", "#wrong", "speedup", "", "(B)", "(floats)", "(us)", "(us)",
      "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(us)", "(us)", "(GB/s)", "(GB/s)", "", "");
}

std::string bench_comm_line(const BenchCommRow& row) {
  auto half = [](const BenchCommTime& t) {
    return fmt::format("{:>10.1f} {:>10.1f} {:>10.1f} {:>7.3g} {:>7.3g} {:>6}", t.median_us,
                       t.min_us, t.max_us, t.algbw, t.busbw,
                       t.wrong < 0 ? std::string("n/a") : std::to_string(t.wrong));
  };
  std::string line = fmt::format("{:>14} {:>12} {:>11} | {}", row.collective, row.bytes, row.count,
                                 half(row.ours));
  if (row.mpi)
    line +=
        fmt::format(" | {} | {:>6.1f}x", half(*row.mpi), row.mpi->median_us / row.ours.median_us);
  return line;
}

}  // namespace lockstep
