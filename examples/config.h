// Config: everything a run is told, one section per part of the code. Sections that belong to a
// library stand there (nn/config.h, data/config.h, ...), the three that belong to the run stand
// here. What may be combined is checked in validate.h. Read next: config_fields.h.
#pragma once

#include <cstdint>
#include <string>

#include "core/config_field.h"
#include "core/dtype.h"
#include "data/config.h"
#include "dist/config.h"
#include "nn/config.h"
#include "optim/config.h"

namespace lockstep {

struct TrainConfig {
  std::string device = "cpu";
  std::string precision = "fp32";
  int64_t steps = 1000;
  int64_t seq_len = 256;
  int64_t micro_batch = 8;
  int64_t global_batch = 0;
  std::string attention = "auto";
  bool cuda_graph = false;
  std::string recompute = "none";
  std::string reproducible = "same_world";
  int64_t seed = 0;
  int64_t threads = 0;
  int64_t eval_every = 0;
  int64_t eval_batches = 0;
  int64_t sample_every = 0;
  int64_t sample_tokens = 0;
  std::string sample_prompt = "\n";
  int64_t max_skipped = 10;

  // Of the weights and activations that compute.
  DType dtype() const { return precision == "bf16" ? DType::bf16 : DType::f32; }

  template <class V>
  void visit(V& v) {
    v("device", device, "where the ranks compute", Choices{"cpu", "cuda"});
    v("precision", precision,
      "of activations and of the weights that compute; master weights are always fp32. tf32 is "
      "stored as fp32, but a GPU's matrix products round their factors to 10 bits of fraction",
      Choices{"fp32", "tf32", "bf16"});
    v("steps", steps, "optimizer steps of the whole run", Range{1, 1e12});
    v("seq_len", seq_len, "tokens per sample; at most model.max_seq_len", Range{1, 1e8});
    v("micro_batch", micro_batch, "samples per rank and forward pass", Range{1, 1e6});
    v("global_batch", global_batch,
      "samples per step over all ranks: micro_batch x ranks x accumulated micro-batches; "
      "0: micro_batch x ranks",
      Range{0, 1e9});
    v("attention", attention,
      "on a GPU: own kernels, cudnn, or auto: cuDNN where the build has it and it has a "
      "deterministic engine for the model's heads",
      Choices{"auto", "own", "cudnn"});
    v("cuda_graph", cuda_graph,
      "on a GPU: the kernels of a micro-batch are recorded and replayed as CUDA graphs, with the "
      "same bits; saves a small model the time of its launches, and holds its activations for "
      "good");
    v("recompute", recompute,
      "block: keep only each block's input and run its forward pass again in backward",
      Choices{"none", "block"});
    v("reproducible", reproducible,
      "same_world: the same bits in every run with the same number of ranks; any_world: also with "
      "another, if ranks and micro-batches per rank are powers of two",
      Choices{"same_world", "any_world"});
    v("seed", seed, "of initial weights, data order and dropout", Range{0});
    v("threads", threads, "threads per rank; 0: the host's usable cores / its ranks",
      Range{0, 4096});
    v("eval_every", eval_every,
      "steps between evaluations on data.val, besides the one at the end; 0: only that one",
      Range{0, 1e12});
    v("eval_batches", eval_batches,
      "micro-batches per evaluation, over all ranks; 0: all of data.val", Range{0, 1e12});
    v("sample_every", sample_every,
      "steps between sample texts, besides the one at the end; 0: only that one", Range{0, 1e12});
    v("sample_tokens", sample_tokens, "tokens of a sample text; 0: no samples", Range{0, 1e6});
    v("sample_prompt", sample_prompt, "what sample texts start from");
    v("max_skipped", max_skipped,
      "the run stops after this many steps in a row were skipped because loss or gradient was not "
      "finite",
      Range{1, 1e12});
  }
};

struct CheckpointConfig {
  int64_t every = 0;
  int64_t keep_last = 2;
  std::string resume = "auto";

  template <class V>
  void visit(V& v) {
    v("every", every, "steps between checkpoints, besides the one at the end; 0: only that one",
      Range{0, 1e12});
    v("keep_last", keep_last, "how many of the newest checkpoints stay; 0: all", Range{0, 1e6});
    v("resume", resume,
      "auto: from the newest complete checkpoint of run_dir, if there is one; none: from the "
      "start, every time; else a checkpoint folder, and when started again from what was saved "
      "since");
  }
};

struct LogConfig {
  int64_t every = 10;
  std::string progress = "auto";

  template <class V>
  void visit(V& v) {
    v("every", every, "steps between plain lines; metrics.jsonl has every step", Range{1, 1e12});
    v("progress", progress,
      "line: one line that rewrites itself; plain: a line per log.every steps; auto: line on a "
      "terminal, else plain",
      Choices{"auto", "line", "plain", "none"});
  }
};

struct Config {
  std::string run_dir = "runs/default";
  ModelConfig model;
  DataConfig data;
  OptimConfig optim;
  TrainConfig train;
  DistConfig dist;
  CheckpointConfig checkpoint;
  LogConfig log;

  template <class V>
  void visit(V& v) {
    v("run_dir", run_dir, "folder of the run: resolved config, log, metrics, checkpoints");
    v("model", model, "the network");
    v("data", data, "what it learns from");
    v("optim", optim, "how its weights move");
    v("train", train, "the training loop");
    v("dist", dist, "the ranks and what they exchange");
    v("checkpoint", checkpoint, "what is saved and where a run starts");
    v("log", log, "what is shown");
  }
};

}  // namespace lockstep
