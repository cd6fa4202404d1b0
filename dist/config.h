// The run config's `dist` section. Each field has its default here and its help text in visit(),
// and nowhere else. What a combination of sections means is checked where all sections are known.
// Read next: communicator.h.
#pragma once

#include <cstdint>
#include <string>

#include "core/config_field.h"

namespace lockstep {

struct DistConfig {
  std::string backend = "mpi";
  int local_ranks = 1;
  std::string reducer = "bucketed";
  double bucket_mb = 25.0;
  bool overlap = true;
  double timeout_s = 300.0;
  double start_timeout_s = 600.0;
  double checkpoint_timeout_s = 1800.0;
  double eval_timeout_s = 1800.0;
  int64_t verify_every = 1000;

  template <class V>
  void visit(V& v) {
    v("backend", backend,
      "who the ranks are: mpi (processes started by mpirun) or local (threads of this process)",
      Choices{"mpi", "local"});
    v("local_ranks", local_ranks, "number of ranks of backend local", Range{1, 64});
    v("reducer", reducer,
      "bucketed: gradients travel while backward runs; naive: one by one after backward, with the "
      "same bits, for reading and for comparison",
      Choices{"bucketed", "naive"});
    v("bucket_mb", bucket_mb, "size at which a gradient bucket is closed, in MiB",
      Range{1e-3, 1e5});
    v("overlap", overlap, "exchange buckets while backward still runs; false: afterwards");
    v("timeout_s", timeout_s,
      "longest wait for another rank in a training step, in seconds; then the run ends with exit "
      "code 75",
      Range{1e-2, 1e6});
    v("start_timeout_s", start_timeout_s,
      "the same from the launch to the first step, MPI's own start included", Range{1e-2, 1e6});
    v("checkpoint_timeout_s", checkpoint_timeout_s, "the same while a checkpoint is written",
      Range{1e-2, 1e6});
    v("eval_timeout_s", eval_timeout_s, "the same during evaluation and sampling",
      Range{1e-2, 1e6});
    v("verify_every", verify_every,
      "steps between comparisons of the weights across ranks; 0: only at the start",
      Range{0, 1e12});
  }
};

}  // namespace lockstep
