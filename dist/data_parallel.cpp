// What a config asks for, as a composition of parts. Read next: comm_times.h.
#include "dist/data_parallel.h"

#include "dist/naive.h"
#include "dist/stages.h"

namespace lockstep {

namespace {

// Buckets in flight where gradients have no memory of their own: one is filled, one is read by the
// peers, and two more smooth the traffic.
constexpr int kWindowsInFlight = 4;

}  // namespace

ReducerOptions reducer_options(const DistConfig& config, SumOrder order, double momentum) {
  const Stage& stage = zero_stages.at(config.zero_stage);
  ReducerOptions options;
  options.bucket_bytes = static_cast<int64_t>(config.bucket_mb * (1 << 20));
  options.overlap = config.overlap;
  options.units_apart = stage.residence == Residence::sharded;
  options.residence = stage.residence;
  options.windows = stage.keeps_gradients ? 0 : kWindowsInFlight;
  ExchangeRules& rules = options.rules;
  rules.reduced = config.reduced();
  rules.gather = stage.residence == Residence::replicated;
  // A tree over this rank's micro steps holds whole gradients from one to the next.
  const bool local_tree = order == SumOrder::any_world && !config.reduced();
  rules.keep_gradients = stage.keeps_gradients || local_tree;
  rules.order = order;
  rules.error_feedback = config.compression.error_feedback;
  rules.momentum = momentum;
  rules.warmup_steps = config.compression.warmup_steps;
  rules.min_elements = config.compression.min_elements;
  if (config.compression.codec != "none")
    rules.codec = make_codec(config.compression.codec, {.ratio = config.compression.ratio});
  return options;
}

std::unique_ptr<DataParallel> make_data_parallel(const DistConfig& config,
                                                 Communicator& communicator,
                                                 std::vector<NamedTensor> parameters,
                                                 std::vector<size_t> unit_of, SumOrder order,
                                                 const Initialise& initialise, double momentum) {
  check(!initialise || config.zero_stage == 3,
        "[data_parallel] zero_stage {} needs all parameters from the start", config.zero_stage);
  const ReducerOptions options = reducer_options(config, order, momentum);
  if (config.reducer == "naive") return make_naive(config, communicator, std::move(parameters));
  return make_reducer(options, communicator, std::move(parameters), std::move(unit_of), initialise);
}

}  // namespace lockstep
