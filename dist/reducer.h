// The bucketed form of data parallelism. Read next: reducer.cpp.
#pragma once

#include "dist/bucket_exchange.h"
#include "dist/data_parallel.h"
#include "dist/placement.h"

namespace lockstep {

struct ReducerOptions {
  int64_t bucket_bytes = 4 << 20;
  bool overlap = true;       // exchange while backward still runs
  bool units_apart = false;  // no bucket holds parameters of two units
  Residence residence = Residence::replicated;
  int windows = 0;  // that the buckets take turns with; 0: one each
  ExchangeRules rules;
};

std::unique_ptr<DataParallel> make_reducer(const ReducerOptions& options,
                                           Communicator& communicator,
                                           std::vector<NamedTensor> parameters,
                                           std::vector<size_t> unit_of,
                                           const Initialise& initialise);

}  // namespace lockstep
