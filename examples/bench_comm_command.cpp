// `trainer bench comm`: the options, the table and the JSON around dist/bench_comm.h.
// Read next: dist/bench_comm.h.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dist/bench_comm.h"
#include "dist/launch.h"
#include "dist/local.h"
#include "dist/mpi.h"
#include "examples/bench_command.h"

namespace lockstep {

namespace {

using Json = nlohmann::ordered_json;

struct CommOptions {
  BenchCommOptions bench;
  std::string backend = "mpi";
  int ranks = 2;
  std::string json;
};

Json to_json(const BenchCommTime& time) {
  return {{"median_us", time.median_us}, {"min_us", time.min_us}, {"max_us", time.max_us},
          {"algbw", time.algbw},         {"busbw", time.busbw},   {"wrong", time.wrong}};
}

Json to_json(const Communicator& communicator, const std::vector<BenchCommRow>& rows) {
  const Topology& where = communicator.topology();
  Json json = {{"backend", communicator.backend()},
               {"ranks", where.size},
               {"hosts", where.hosts},
               {"host", where.host_name.front()},
               {"rows", Json::array()}};
  for (const BenchCommRow& row : rows) {
    json["rows"].push_back(
        {{"collective", row.collective}, {"bytes", row.bytes}, {"ours", to_json(row.ours)}});
    if (row.mpi) json["rows"].back()["mpi"] = to_json(*row.mpi);
  }
  return json;
}

// One rank's part; rank 0 shows it. Exit::internal if a sum was wrong.
void comm_action(const CommOptions& options, Communicator& communicator) {
  check_launch(communicator.size());
  const bool shows = communicator.rank() == 0;
  const auto show = [&](const std::string& line) {
    if (!shows) return;
    fmt::print("{}\n", line);
    std::fflush(stdout);
  };
  const Topology& where = communicator.topology();
  show(fmt::format("# {} ranks on {} hosts, backend {}", where.size, where.hosts,
                   communicator.backend()));
  show(bench_comm_header());
  const auto rows = bench_comm(communicator, options.bench,
                               [&](const BenchCommRow& row) { show(bench_comm_line(row)); });
  if (shows && !options.json.empty()) write_json(options.json, to_json(communicator, rows).dump(2));
  for (const BenchCommRow& row : rows)
    if (row.ours.wrong > 0)
      fail(Exit::internal, "[bench comm] {} of {} bytes gave {} wrong elements", row.collective,
           row.bytes, row.ours.wrong);
}

}  // namespace

void add_bench_comm(CLI::App& bench, Exit& exit) {
  CLI::App* command = bench.add_subcommand("comm", "time and exactness of the collectives");
  auto options = std::make_shared<CommOptions>();
  BenchCommOptions& b = options->bench;
  const CLI::Validator size = CLI::AsSizeValue(false).description("");
  command->add_option("-b,--minbytes", b.begin_bytes, "first size; K, M, G are powers of 1024")
      ->transform(size)
      ->capture_default_str();
  command->add_option("-e,--maxbytes", b.end_bytes, "largest size")
      ->transform(size)
      ->capture_default_str();
  CLI::Option* factor =
      command->add_option("-f,--stepfactor", b.factor, "from one size to the next: times this")
          ->capture_default_str();
  command->add_option("-i,--stepbytes", b.step_bytes, "from one size to the next: plus this")
      ->transform(size)
      ->excludes(factor);
  command->add_option("-n,--iters", b.iterations, "timed iterations per size")
      ->capture_default_str();
  command->add_option("-w,--warmup_iters", b.warmup, "untimed iterations before them")
      ->capture_default_str();
  command->add_option("-c,--check", b.check, "1: count wrong elements; 0: do not")
      ->capture_default_str();
  command->add_flag("--mpi-out-of-place", b.mpi_out_of_place,
                    "give MPI's calls two buffers; ours always work in place");
  command->add_option("--backend", options->backend, "mpi: processes of mpirun; local: threads")
      ->check(CLI::IsMember({"mpi", "local"}))
      ->capture_default_str();
  command->add_option("--ranks", options->ranks, "number of threads of backend local")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_option("--json", options->json, "write the figures there, too")->type_name("FILE");
  command->footer(
      "Columns and bus factors are those of nccl-tests.\n"
      "Example:\n"
      "  mpirun -np 2 trainer bench comm -b 1M -e 128M -f 2 --json comm.json");
  command->callback([options, &exit] {
    const auto body = [&](Communicator& communicator) { comm_action(*options, communicator); };
    if (options->backend == "local")
      run_local(options->ranks, {}, body);
    else
      run_mpi({}, body);
    exit = Exit::ok;
  });
}

}  // namespace lockstep
