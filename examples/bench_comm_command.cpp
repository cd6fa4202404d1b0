// `trainer bench comm`: the options, the tables and the JSON around dist/bench_comm.h and, with
// --codec, dist/bench_codec.h. Read next: dist/bench_comm.h.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/parallel.h"
#include "core/plural.h"
#include "dist/bench_codec.h"
#include "dist/bench_comm.h"
#include "dist/launch.h"
#include "dist/local.h"
#include "dist/mpi.h"
#include "examples/bench_command.h"
#include "examples/command.h"
#include "examples/machine_load.h"

namespace lockstep {

namespace {

using Json = nlohmann::ordered_json;

struct CommOptions {
  BenchCommOptions bench;
  std::string backend = "mpi";
  int ranks = 2;
  BenchCodecOptions codecs;
  bool codec = false;  // time codecs instead of collectives,
  int threads = 1;     // on so many threads per rank
  std::string json;
};

Json to_json(const BenchCommTime& time) {
  return {{"median_us", time.median_us}, {"min_us", time.min_us}, {"max_us", time.max_us},
          {"algbw", time.algbw},         {"busbw", time.busbw},   {"wrong", time.wrong}};
}

Json to_json(const BenchCommRow& row) {
  Json json = {{"collective", row.collective}, {"bytes", row.bytes}, {"ours", to_json(row.ours)}};
  if (row.mpi) json["mpi"] = to_json(*row.mpi);
  return json;
}

Json to_json(const BenchCodecRow& row) {
  return {{"codec", row.codec},
          {"bytes", row.bytes},
          {"wire_bytes", row.wire_bytes},
          {"ratio", row.ratio()},
          {"encode_us", row.encode.median_us},
          {"decode_us", row.decode.median_us},
          {"break_even_gb_s", row.break_even_gb_s()},
          {"wrong", row.wrong}};
}

Json to_json(const Communicator& communicator) {
  const Topology& where = communicator.topology();
  return {{"backend", communicator.backend()},
          {"ranks", where.size},
          {"hosts", where.hosts},
          {"host", where.host_name.front()}};
}

// Rank 0 shows lines as they come, and writes the file at the end.
class Report {
 public:
  Report(const CommOptions& options, const Communicator& communicator)
      : shows_(communicator.rank() == 0), file_(options.json), json_(to_json(communicator)) {
    json_["rows"] = Json::array();
    if (shows_) check_json(file_);
  }
  void line(const std::string& text) const {
    if (!shows_) return;
    fmt::print("{}\n", text);
    std::fflush(stdout);
  }
  template <class Row>
  void row(const std::string& text, const Row& row) {
    line(text);
    json_["rows"].push_back(to_json(row));
  }
  void end(Communicator& communicator) {
    const std::string busy = load_.warning(communicator);
    json_["busy_machine"] = busy;
    if (shows_) print_load(busy);
    write();
  }
  void set(const char* key, const Json& value) { json_[key] = value; }

 private:
  void write() const {
    if (shows_ && !file_.empty()) write_json(file_, json_.dump(2));
  }

  MachineLoad load_;
  bool shows_;
  std::string file_;
  Json json_;
};

// One rank's part. Exit::internal if a sum was wrong.
void time_collectives(const CommOptions& options, Communicator& communicator, Report& report) {
  report.line(bench_comm_header());
  const auto rows = bench_comm(communicator, options.bench, [&](const BenchCommRow& row) {
    report.row(bench_comm_line(row), row);
  });
  report.end(communicator);
  for (const BenchCommRow& row : rows)
    if (row.ours.wrong > 0)
      fail(Exit::internal, "[bench comm] {} of {} bytes gave {} wrong elements", row.collective,
           row.bytes, row.ours.wrong);
}

// One rank's part. Exit::internal if something was neither sent nor left.
void time_codecs(const CommOptions& options, Communicator& communicator, Report& report) {
  set_num_threads(options.threads);
  report.set("threads", options.threads);
  report.set("ratio", options.codecs.codec_options.ratio);
  report.set("touched", options.codecs.touched);
  report.line(fmt::format("# {} per rank, topk ratio {}, share of rows touched {}",
                          plural(options.threads, "thread"), options.codecs.codec_options.ratio,
                          options.codecs.touched));
  report.line(bench_codec_header());
  const auto rows =
      bench_codec(communicator, options.codecs, options.bench,
                  [&](const BenchCodecRow& row) { report.row(bench_codec_line(row), row); });
  report.end(communicator);
  for (const BenchCodecRow& row : rows)
    if (row.wrong > 0)
      fail(Exit::internal, "[bench comm] {} lost {} elements of {} bytes", row.codec, row.wrong,
           row.bytes);
}

void comm_action(const CommOptions& options, Communicator& communicator) {
  check_launch(communicator.size());
  if (!options.codec && communicator.size() == 1)
    fail(Exit::usage,
         "[bench comm] one rank exchanges nothing; start several with mpirun -np 2, or use "
         "--backend local");
  const Topology& where = communicator.topology();
  Report report(options, communicator);
  report.line(fmt::format("# {} on {}, backend {}", plural(where.size, "rank"),
                          plural(where.hosts, "host"), communicator.backend()));
  (options.codec ? time_codecs : time_collectives)(options, communicator, report);
}

std::vector<std::string> codec_choices() {
  std::vector<std::string> names = {"all"};
  for (const CodecEntry& entry : codec_table()) names.push_back(entry.name);
  return names;
}

std::string footer() {
  std::string codecs;
  for (const CodecEntry& entry : codec_table())
    codecs += fmt::format("  {:<8}{}\n", entry.name, entry.help);
  return "Columns and bus factors are those of nccl-tests.\n"
         "Example:\n"
         "  mpirun -np 2 trainer bench comm -b 1M -e 128M -f 2 --json comm.json\n"
         "\n"
         "Codecs:\n" +
         codecs +
         "A codec pays where uncompressed fp32 gradients would be exchanged (8 x algbw) below\n"
         "(fp32 bits - bits on the wire) / (encode + decode time).\n"
         "Example:\n"
         "  trainer bench comm --backend local --codec all -b 16M -e 16M\n"
         "  trainer bench comm --backend local --codec rows --touched 0.1";
}

// What can be said before any rank starts.
void check_options(const CLI::App& command, const CommOptions& options) {
  if (command.count("--ranks") > 0 && options.backend != "local")
    fail(
        Exit::usage,
        "[bench comm] --ranks means nothing to backend {}, whose ranks mpirun starts; use its -np, "
        "or --backend local",
        options.backend);
  const std::string& codec = options.codecs.codec;
  if (command.count("--ratio") > 0 && codec != "topk" && codec != "all")
    fail(Exit::usage, "[bench comm] --ratio means nothing to codec {}; use --codec topk or all",
         codec);
  for (const CodecEntry& entry : codec_table()) entry.make(options.codecs.codec_options);
}

// Of sizes and repetitions, for collectives and codecs alike.
void add_size_options(CLI::App& command, BenchCommOptions& options) {
  const CLI::Validator size = CLI::AsSizeValue(false).description("");
  command
      .add_option("-b,--minbytes", options.begin_bytes, "first size; K, M, G are powers of 1024")
      ->transform(size)
      ->capture_default_str();
  command.add_option("-e,--maxbytes", options.end_bytes, "largest size")
      ->transform(size)
      ->capture_default_str();
  CLI::Option* factor =
      command
          .add_option("-f,--stepfactor", options.factor, "from one size to the next: times this")
          ->check(finite())
          ->capture_default_str();
  command.add_option("-i,--stepbytes", options.step_bytes, "from one size to the next: plus this")
      ->transform(size)
      ->excludes(factor);
  command.add_option("-n,--iters", options.iterations, "timed iterations per size")
      ->capture_default_str();
  command.add_option("-w,--warmup_iters", options.warmup, "untimed iterations before them")
      ->capture_default_str();
  command.add_option("-c,--check", options.check, "1: count wrong elements; 0: do not")
      ->capture_default_str();
}

// Returns --codec.
CLI::Option* add_codec_options(CLI::App& command, CommOptions& options) {
  BenchCodecOptions& b = options.codecs;
  CLI::Option* codec =
      command
          .add_option("--codec", b.codec, "instead of collectives, time the coding of gradients")
          ->check(CLI::IsMember(codec_choices()))
          ->default_str("");
  command.add_option("--ratio", b.codec_options.ratio, "topk: share of the elements that is sent")
      ->needs(codec)
      ->capture_default_str();
  command
      .add_option("--touched", b.touched,
                  "share of the rows of the gradient, of 512 elements each, that are not zero")
      ->check(finite())
      ->check(CLI::Range(0.0, 1.0))
      ->needs(codec)
      ->capture_default_str();
  command
      .add_option("--threads", options.threads,
                  "of each rank; training codes on one, its communication thread")
      ->check(CLI::Range(1, 1024))
      ->needs(codec)
      ->capture_default_str();
  return codec;
}

}  // namespace

void add_bench_comm(CLI::App& bench, Exit& exit) {
  CLI::App* command =
      bench.add_subcommand("comm", "time and exactness of the collectives, or of the codecs");
  auto options = std::make_shared<CommOptions>();
  add_size_options(*command, options->bench);
  CLI::Option* out_of_place =
      command->add_flag("--mpi-out-of-place", options->bench.mpi_out_of_place,
                        "give MPI's calls two buffers; ours always work in place");
  add_codec_options(*command, *options)->excludes(out_of_place);
  command->add_option("--backend", options->backend, "mpi: processes of mpirun; local: threads")
      ->check(CLI::IsMember({"mpi", "local"}))
      ->capture_default_str();
  command->add_option("--ranks", options->ranks, "number of threads of backend local")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_option("--json", options->json, "write the figures there, too")->type_name("FILE");
  command->footer(footer());
  command->callback([options, command, &exit] {
    options->codec = command->count("--codec") > 0;
    check_options(*command, *options);
    const auto body = [&](Communicator& communicator) { comm_action(*options, communicator); };
    if (options->backend == "local")
      run_local(options->ranks, {}, body);
    else
      run_mpi({}, body);
    exit = Exit::ok;
  });
}

}  // namespace lockstep
