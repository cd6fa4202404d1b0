// The engine of `trainer bench comm`: time and exactness of the collectives that training is made
// of, with MPI's own collective beside ours in the same run. Columns and bus factors are
// nccl-tests', so numbers can be compared: algbw = bytes / time, busbw = algbw x the share of bytes
// each rank must move at best (2 (n-1)/n for all-reduce, (n-1)/n for the two halves, 1 for
// broadcast). Printing to a file and option parsing are the command's. Read next: bench_codec.h.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dist/bench_times.h"
#include "dist/communicator.h"

namespace lockstep {

struct BenchCommOptions {
  size_t begin_bytes = 1 << 20;
  size_t end_bytes = 128 << 20;
  double factor = 2;      // from one size to the next: times this,
  size_t step_bytes = 0;  // or, if it is not 0, plus this
  int iterations = 20;
  int warmup = 3;
  bool check = true;
  // Ours are always in place, as gradients are. MPI's calls too, unless this asks for two buffers.
  bool mpi_out_of_place = false;
};

struct BenchCommTime : BenchTimes {
  double algbw = 0, busbw = 0;  // GB/s, of the median
  int64_t wrong = -1;           // elements, over all ranks; -1: not checked
};

struct BenchCommRow {
  std::string collective;
  size_t bytes = 0;  // of the whole buffer, as nccl-tests counts
  size_t count = 0;  // floats
  BenchCommTime ours;
  std::optional<BenchCommTime> mpi;  // only on backend mpi
};

// The sizes in bytes that the options ask for. Exit::usage if they make no sense.
std::vector<size_t> bench_sizes(const BenchCommOptions& options);

// Collective. `on_row` sees each row as soon as it is measured, on every rank.
std::vector<BenchCommRow> bench_comm(Communicator& communicator, const BenchCommOptions& options,
                                     const std::function<void(const BenchCommRow&)>& on_row = {});

std::string bench_comm_header();
std::string bench_comm_line(const BenchCommRow& row);

}  // namespace lockstep
