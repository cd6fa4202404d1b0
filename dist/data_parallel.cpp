// What a config asks for, as a composition of parts. Read next: naive.cpp, then reducer.cpp.
#include "dist/data_parallel.h"

#include <array>

#include "dist/naive.h"
#include "dist/reducer.h"

namespace lockstep {

namespace {

// What each ZeRO stage splits among the ranks, beside the optimizer's state from stage 1 on.
struct Stage {
  Residence residence;
  bool keep_gradients;
};
constexpr std::array<Stage, 4> stages{{{Residence::replicated, true},
                                       {Residence::gathered, true},
                                       {Residence::gathered, false},
                                       {Residence::sharded, false}}};

// Buckets in flight where gradients have no memory of their own: one is filled, one is read by the
// peers, and two more smooth the traffic.
constexpr int kWindowsInFlight = 4;

}  // namespace

std::unique_ptr<DataParallel> make_data_parallel(const DistConfig& config,
                                                 Communicator& communicator,
                                                 std::vector<NamedTensor> parameters,
                                                 std::vector<size_t> unit_of, SumOrder order) {
  if (config.reducer == "naive") return make_naive(config, communicator, std::move(parameters));
  const Stage& stage = stages.at(config.zero_stage);
  ReducerOptions options;
  options.bucket_bytes = static_cast<int64_t>(config.bucket_mb * (1 << 20));
  options.overlap = config.overlap;
  options.units_apart = stage.residence == Residence::sharded;
  options.residence = stage.residence;
  options.windows = stage.keep_gradients ? 0 : kWindowsInFlight;
  options.rules.reduced = config.reduced();
  options.rules.gather = stage.residence == Residence::replicated;
  // A tree over this rank's micro steps holds whole gradients from one to the next.
  const bool local_tree = order == SumOrder::any_world && !config.reduced();
  options.rules.keep_gradients = stage.keep_gradients || local_tree;
  options.rules.order = order;
  options.rules.error_feedback = config.compression.error_feedback;
  options.rules.warmup_steps = config.compression.warmup_steps;
  options.rules.min_elements = config.compression.min_elements;
  if (config.compression.codec != "none")
    options.rules.codec = make_codec(config.compression.codec, {.ratio = config.compression.ratio});
  return make_reducer(options, communicator, std::move(parameters), std::move(unit_of));
}

}  // namespace lockstep
