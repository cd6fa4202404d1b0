// The run config's `dist` section. Each field has its default here and its help text in visit(),
// and nowhere else. What a combination of sections means is checked where all sections are known.
// Read next: ../core/cpu/tree_sum.h.
#pragma once

#include <cstdint>
#include <string>

#include "core/config_field.h"
#include "dist/codec.h"

namespace lockstep {

// What gradients lose on the wire, and who makes up for it (codec.h).
struct CompressionConfig {
  std::string codec = "none";
  double ratio = 0.01;
  bool error_feedback = true;
  int64_t warmup_steps = 0;
  int64_t min_elements = 65536;

  template <class V>
  void visit(V& v) {
    v("codec", codec, codec_summary(), Choices(codec_names()));
    v("ratio", ratio, "share of a cell's elements that topk sends", Range{1e-6, 1});
    v("error_feedback", error_feedback,
      "what a lossy codec left out is added to the next step's gradient");
    v("warmup_steps", warmup_steps, "steps at the start of the run that travel uncompressed",
      Range{0, 1e12});
    v("min_elements", min_elements,
      "parameters with fewer elements, and all with one dimension, travel uncompressed",
      Range{0, 1e12});
  }
};

struct DistConfig {
  std::string backend = "mpi";
  int local_ranks = 1;
  int zero_stage = 0;
  std::string accumulate = "auto";
  std::string reducer = "bucketed";
  std::string nccl_reduce = "own";
  double bucket_mb = 4.0;
  bool overlap = true;
  CompressionConfig compression;
  double timeout_s = 300.0;
  double start_timeout_s = 600.0;
  double checkpoint_timeout_s = 1800.0;
  double eval_timeout_s = 1800.0;
  int64_t verify_every = 1000;

  bool reduced() const { return accumulate == "auto" ? zero_stage >= 2 : accumulate == "reduced"; }

  template <class V>
  void visit(V& v) {
    v("backend", backend,
      "who the ranks are: mpi (processes started by mpirun), local (threads of this process) or "
      "nccl (mpirun's again, with a GPU each that NCCL connects; the others go through the host)",
      Choices{"mpi", "local", "nccl"});
    v("local_ranks", local_ranks, "number of ranks of backend local", Range{1, 64});
    v("zero_stage", zero_stage,
      "what is split among the ranks: 0 nothing; 1 optimizer state and updates; 2 also gradients; "
      "3 also parameters",
      Range{0, 3});
    v("accumulate", accumulate,
      "local: sum micro-batches on each rank and exchange once per step; reduced: exchange every "
      "micro-batch and sum the shards; auto: local for zero_stage 0 and 1, reduced for 2 and 3",
      Choices{"auto", "local", "reduced"});
    v("reducer", reducer,
      "bucketed: gradients travel while backward runs; naive: one by one after backward, with the "
      "same bits, for reading and for comparison",
      Choices{"bucketed", "naive"});
    v("nccl_reduce", nccl_reduce,
      "who sums what backend nccl exchanges. own: kernels of Lockstep, in the order of the ranks, "
      "with the bits of every other backend; native: NCCL on the way, in an order of its own, "
      "which promises no bits",
      Choices{"own", "native"});
    v("bucket_mb", bucket_mb,
      "size at which a gradient bucket is closed, in MiB; while the first one fills, nothing "
      "travels",
      Range{1e-3, 1e5});
    v("overlap", overlap,
      "gradients travel while backward still runs, gathered parameters under forward; false: "
      "nothing is computed while something travels");
    v("compression", compression, "gradients made smaller for the wire");
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
