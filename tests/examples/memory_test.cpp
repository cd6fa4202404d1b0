// The memory formula against the allocator, and against the published figures.
#include <gtest/gtest.h>

#include "core/parallel.h"
#include "dist/local.h"
#include "dist/memory.h"
#include "examples/config_io.h"
#include "examples/ranks.h"
#include "examples/replica.h"

namespace lockstep {
namespace {

// ZeRO, figure 1: 7.5 billion parameters in fp16 on 64 devices, gradients in fp16, 12 bytes of Adam
// state: 120, 31.4, 16.6, 1.9 GB.
TEST(Memory, TheFormulaGivesThePublishedFigures) {
  const ElementBytes paper{.parameter = 2, .gradient = 2, .optimizer = 12};
  const double published[] = {120, 31.4, 16.6, 1.9};
  for (int stage = 0; stage <= 3; ++stage)
    EXPECT_NEAR(1e-9 * model_states(7.5e9, 64, stage, paper).total(), published[stage], 0.05);
}

Config small_config(const std::string& arch, const std::string& precision) {
  Config config;
  config.model.arch = arch;
  config.model.n_layer = 4;
  config.model.n_head = 2;
  config.model.d_model = 64;
  config.model.max_seq_len = 32;
  config.data.format = "synthetic";
  config.data.tokenizer = "none";
  config.train.precision = precision;
  config.train.seq_len = 32;
  config.train.micro_batch = 1;
  config.train.global_batch = 8;
  config.train.threads = 1;
  config.dist.backend = "local";
  config.dist.local_ranks = 4;
  config.dist.bucket_mb = 0.1;
  return config;
}

int64_t peak(const MemoryStats& stats, Category category) {
  return stats.peak[static_cast<size_t>(category)];
}

void expect_close(double formula, int64_t measured, const std::string& what) {
  EXPECT_NEAR(static_cast<double>(measured), formula, 0.05 * formula + 4096) << what;
}

TEST(Memory, EveryStageHoldsWhatTheFormulaSays) {
  for (const char* arch : {"gpt2", "llama"})
    for (const char* precision : {"fp32", "bf16"})
      for (int stage = 0; stage <= 3; ++stage)
        for (const std::string codec : {"none", "int8", "int8, onebit_adam"}) {
          Config config = small_config(arch, precision);
          config.dist.zero_stage = stage;
          if (codec != "none") {
            config.dist.compression.codec = "int8";
            config.dist.compression.min_elements = 1000;
          }
          if (codec.ends_with("onebit_adam")) {
            config.optim.name = "onebit_adam";
            config.dist.compression.warmup_steps = 1;
          }
          const std::string what =
              fmt::format("{} {} stage {} codec {}", arch, precision, stage, codec);
          run_ranks(config, [&](Communicator& communicator) {
            Allocator::current().reset_peak();
            Replica replica(config, communicator);
            // The whole model stands nowhere while sharded parameters are made.
            if (stage < 3) Allocator::current().reset_peak();
            for (int64_t t = 1; t <= 3; ++t) replica.step(t);
            const MemoryStats stats = Allocator::current().stats();
            const MemoryBytes plan = replica.memory_plan(stage);
            if (communicator.rank() > 0) return;  // shards are even to within cells
            EXPECT_EQ(plan.arrivals, 0) << "of one host";
            expect_close(plan.parameters, peak(stats, Category::parameters), what + " parameters");
            expect_close(plan.gradients, peak(stats, Category::gradients), what + " gradients");
            expect_close(plan.optimizer, peak(stats, Category::optimizer), what + " optimizer");
            // Scratch of kernels is counted among buffers, but only while they run; Llama's layers
            // have tables of rotary positions, cosine and sine.
            const double tables = config.model.arch == "llama" ? 4 * 2 * 32 * 16 * 4 : 0;
            expect_close(plan.buffers + tables,
                         stats.current[static_cast<size_t>(Category::buffers)], what + " buffers");
          });
        }
}

// Two pretended hosts of two ranks.
TEST(Memory, WhatArrivesFromOtherHostsIsInTheFormula) {
  for (int stage = 0; stage <= 3; ++stage)
    for (const char* codec : {"none", "int8"}) {
      Config config = small_config("gpt2", "fp32");
      config.model.vocab_size = 16384;
      config.model.d_model = 32;
      config.model.n_layer = 3;
      config.train.global_batch = 4;
      config.dist.zero_stage = stage;
      config.dist.compression.codec = codec;
      const TransportOptions hosts{.ranks_per_host = 2};
      run_local(4, hosts, [&](Communicator& communicator) {
        set_num_threads(1);
        Allocator allocator(host_memory());
        const AllocatorScope memory(allocator);
        Replica replica(config, communicator);
        for (int64_t t = 1; t <= 3; ++t) replica.step(t);
        const double plan = replica.memory_plan(stage).arrivals;
        const auto mine = static_cast<int64_t>(communicator.arrival_bytes());
        const int64_t measured =
            max_over_ranks(communicator, mine) - 16384;  // for all_gather_bytes
        if (communicator.rank() > 0) return;
        EXPECT_GT(plan, 1e5) << stage << codec;
        expect_close(plan, measured, fmt::format("stage {} codec {} arrivals", stage, codec));
      });
    }
}

}  // namespace
}  // namespace lockstep
