// Each rule with its message. ranks.cpp calls it once the number of ranks is known. Read next:
// replica.h.
#include "examples/validate.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/plural.h"

namespace lockstep {

namespace {

// A value as it stands behind --set KEY= in a shell.
template <class T>
std::string as_typed(const T& value) {
  return fmt::format("{}", value);
}
std::string as_typed(const std::string& value) {
  const bool word = std::ranges::all_of(value, [](char c) { return std::isalnum(c) || c == '_'; });
  return word && !value.empty() ? value : fmt::format("'{:?}'", value);
}
std::string as_typed(const std::vector<double>& values) {
  return fmt::format("[{}]", fmt::join(values, ","));
}

// A key that means nothing beside another key's value must be left alone: set, it would be ignored.
// Both cures are told as a user types them: `cure`, "key=value", which makes it mean something, and
// its default, which on the command line is what removing it is in a file.
template <class T>
void only_if(bool used, std::string_view key, const T& value, const T& unset,
             std::string_view condition, std::string_view cure) {
  if (used || value == unset) return;
  fail(Exit::config,
       "[{0}] means nothing unless {1}; use --set {2}, or remove {0}, as --set {0}={3} does", key,
       condition, cure, as_typed(unset));
}

// The end of a message about a value that is no multiple of `unit`.
std::string nearest_multiples(int64_t value, int64_t unit) {
  const int64_t below = value / unit * unit;
  return below == 0 ? fmt::format("{} is the least that is", unit)
                    : fmt::format("{} and {} are", below, below + unit);
}

void check_model(const ModelConfig& model) {
  const bool llama = model.arch == "llama";
  const ModelConfig defaults;
  if (model.d_model % model.n_head != 0)
    fail(Exit::config, "[model.d_model] {} is not a multiple of model.n_head {}; {}", model.d_model,
         model.n_head, nearest_multiples(model.d_model, model.n_head));
  if (llama && model.n_head % model.kv_heads() != 0)
    fail(Exit::config, "[model.n_kv_head] {} does not divide model.n_head {}; use a divisor, or 0",
         model.n_kv_head, model.n_head);
  if (llama && model.head_dim() % 2 != 0)
    fail(Exit::config,
         "[model.n_head] d_model {} / n_head {} = {} values per head, but rotary positions turn "
         "pairs of values; make it even",
         model.d_model, model.n_head, model.head_dim());
  only_if(llama, "model.n_kv_head", model.n_kv_head, defaults.n_kv_head, "model.arch is llama",
          "model.arch=llama");
  only_if(llama, "model.rope_theta", model.rope_theta, defaults.rope_theta, "model.arch is llama",
          "model.arch=llama");
}

void check_optim(const OptimConfig& optim) {
  const OptimConfig defaults;
  const bool sgd = optim.name == "sgd", scaled = optim.lr_scaling != "none";
  if (optim.betas.size() != 2)
    fail(Exit::config, "[optim.betas] has {} numbers; AdamW takes two, such as [0.9, 0.95]",
         optim.betas.size());
  if (scaled && optim.base_batch_tokens == 0)
    fail(Exit::config,
         "[optim.lr_scaling] {} needs optim.base_batch_tokens, the tokens per step that optim.lr "
         "was tuned for; set it, or use none",
         optim.lr_scaling);
  only_if(!sgd, "optim.betas", optim.betas, defaults.betas, "optim.name is adamw or onebit_adam",
          "optim.name=adamw");
  only_if(!sgd, "optim.eps", optim.eps, defaults.eps, "optim.name is adamw or onebit_adam",
          "optim.name=adamw");
  only_if(sgd, "optim.momentum", optim.momentum, defaults.momentum, "optim.name is sgd",
          "optim.name=sgd");
  only_if(scaled, "optim.base_batch_tokens", optim.base_batch_tokens, defaults.base_batch_tokens,
          "optim.lr_scaling is linear or sqrt", "optim.lr_scaling=sqrt");
  only_if(optim.schedule != "constant", "optim.min_lr_ratio", optim.min_lr_ratio,
          defaults.min_lr_ratio, "optim.schedule is cosine, linear or wsd",
          "optim.schedule=cosine");
  only_if(optim.schedule == "wsd", "optim.wsd_decay_share", optim.wsd_decay_share,
          defaults.wsd_decay_share, "optim.schedule is wsd", "optim.schedule=wsd");
}

bool is_lossy(const std::string& codec) {
  return codec != "none" && codec != "rows";
}

// Its second moment is frozen when gradients begin to travel compressed.
void check_onebit_adam(const Config& config) {
  if (config.optim.name != "onebit_adam") return;
  const CompressionConfig& compression = config.dist.compression;
  if (!is_lossy(compression.codec))
    fail(Exit::config,
         "[optim.name] onebit_adam is Adam for gradients that a codec makes smaller; set "
         "dist.compression.codec to a lossy one, such as sign, found {}, or use adamw",
         compression.codec);
  if (compression.warmup_steps == 0)
    fail(Exit::config,
         "[dist.compression.warmup_steps] 0 leaves onebit_adam no step to learn its second moment "
         "in; 15 to 25 % of train.steps is what its paper takes");
  if (config.optim.betas[0] == 0)
    fail(Exit::config,
         "[optim.betas] {} leave onebit_adam no momentum to send; use [0.9, 0.95], or adamw",
         as_typed(config.optim.betas));
}

void check_train(const Config& config) {
  const TrainConfig& train = config.train;
  if (train.attention == "cudnn" && train.device != "cuda")
    fail(Exit::config, "[train.attention] cudnn is for train.device cuda, not {}; use auto or own",
         train.device);
  if (train.precision == "tf32" && train.device != "cuda")
    fail(Exit::config,
         "[train.precision] tf32 is how a GPU multiplies, and train.device {} cannot; use fp32, or "
         "train.device cuda",
         train.device);
  if (train.seq_len > config.model.max_seq_len)
    fail(Exit::config,
         "[train.seq_len] {} is more than model.max_seq_len {}; shorten the one or raise the other",
         train.seq_len, config.model.max_seq_len);
}

void check_device(const Config& config) {
  if (config.dist.backend == "nccl" && config.train.device != "cuda")
    fail(Exit::config,
         "[dist.backend] nccl exchanges between GPUs; use train.device cuda, or dist.backend mpi");
}

// What a recording repeats is the same each time: memory that parameters have only while they are
// used is not, nor that of gradients from one micro-step to another.
void check_cuda_graph(const Config& config) {
  if (!config.train.cuda_graph) return;
  if (config.train.device != "cuda")
    fail(Exit::config,
         "[train.cuda_graph] records a GPU's kernels; use train.device cuda, or leave it out");
  if (config.dist.zero_stage == 3)
    fail(
        Exit::config,
        "[train.cuda_graph] with dist.zero_stage 3 parameters come and go within a micro-step, and "
        "a recording needs them in one place; use 0, 1 or 2, or leave train.cuda_graph out");
  if (config.dist.zero_stage == 2 && !config.dist.reduced())
    fail(Exit::config,
         "[train.cuda_graph] with dist.zero_stage 2 and dist.accumulate local gradients that grow "
         "from micro-step to micro-step have no one place; use dist.accumulate reduced");
  if (config.dist.reducer != "bucketed")
    fail(Exit::config, "[train.cuda_graph] needs dist.reducer bucketed, found {}",
         config.dist.reducer);
}

void check_compression(const CompressionConfig& compression) {
  const CompressionConfig defaults;
  const bool compresses = compression.codec != "none";
  only_if(compression.codec == "topk", "dist.compression.ratio", compression.ratio, defaults.ratio,
          "dist.compression.codec is topk", "dist.compression.codec=topk");
  only_if(is_lossy(compression.codec), "dist.compression.error_feedback",
          compression.error_feedback, defaults.error_feedback, "dist.compression.codec is lossy",
          "dist.compression.codec=int8");
  only_if(compresses, "dist.compression.warmup_steps", compression.warmup_steps,
          defaults.warmup_steps, "dist.compression.codec is not none",
          "dist.compression.codec=int8");
  only_if(compresses, "dist.compression.min_elements", compression.min_elements,
          defaults.min_elements, "dist.compression.codec is not none",
          "dist.compression.codec=int8");
}

void check_dist(const DistConfig& dist) {
  const DistConfig defaults;
  const bool bucketed = dist.reducer == "bucketed";
  only_if(dist.backend == "local", "dist.local_ranks", dist.local_ranks, defaults.local_ranks,
          "dist.backend is local (with mpi, mpirun's -np is the number of ranks)",
          "dist.backend=local");
  only_if(bucketed, "dist.bucket_mb", dist.bucket_mb, defaults.bucket_mb,
          "dist.reducer is bucketed", "dist.reducer=bucketed");
  only_if(bucketed, "dist.overlap", dist.overlap, defaults.overlap, "dist.reducer is bucketed",
          "dist.reducer=bucketed");
  only_if(dist.backend == "nccl", "dist.nccl_reduce", dist.nccl_reduce, defaults.nccl_reduce,
          "dist.backend is nccl", "dist.backend=nccl");
  check_compression(dist.compression);
  if (dist.nccl_reduce == "native" && dist.compression.codec != "none")
    fail(
        Exit::config,
        "[dist.nccl_reduce] native, but NCCL cannot sum what codec {} makes of gradients; use own, "
        "or dist.compression.codec none",
        dist.compression.codec);
  if (!bucketed && (dist.zero_stage > 0 || dist.compression.codec != "none"))
    fail(Exit::config,
         "[dist.reducer] naive neither shards nor compresses; use bucketed, or dist.zero_stage 0 "
         "and dist.compression.codec none");
}

bool power_of_two(int64_t n) {
  return n > 0 && (n & (n - 1)) == 0;
}

// One balanced tree over all micro-batches of a step.
void check_any_world(const Config& config, int ranks) {
  if (config.train.reproducible != "any_world") return;
  if (config.dist.compression.codec != "none")
    fail(Exit::config,
         "[train.reproducible] any_world needs dist.compression.codec none: it adds up "
         "micro-batches as floats, before and after they travel, and a codec's messages are none; "
         "use same_world");
  if (config.dist.reducer != "bucketed")
    fail(Exit::config, "[train.reproducible] any_world needs dist.reducer bucketed");
  if (config.dist.nccl_reduce != "own")
    fail(Exit::config,
         "[train.reproducible] any_world needs dist.nccl_reduce own: NCCL sums in an order of its "
         "own");
  const int64_t count = accumulation(config, ranks);
  if (!power_of_two(ranks) || !power_of_two(count))
    fail(Exit::config,
         "[train.reproducible] any_world sums micro-batches as one tree, so ranks ({}) and "
         "micro-batches per rank ({}) must be powers of two",
         ranks, count);
}

// What is evaluated and sampled must come from somewhere.
void check_data(const Config& config) {
  const DataConfig& data = config.data;
  const TrainConfig& train = config.train;
  const TrainConfig defaults;
  lockstep::validate(data);
  if (data.tokenizer == "bytes" && data.format != "synthetic" && config.model.vocab_size < 256)
    fail(Exit::config,
         "[model.vocab_size] {} is less than the 256 ids of data.tokenizer bytes; use at least 256",
         config.model.vocab_size);
  const bool evaluates = !data.val.empty() || data.format == "synthetic";
  only_if(evaluates, "train.eval_every", train.eval_every, defaults.eval_every,
          "data.val names validation shards", "data.val=SHARDS");
  only_if(evaluates, "train.eval_batches", train.eval_batches, defaults.eval_batches,
          "data.val names validation shards", "data.val=SHARDS");
  const bool samples = train.sample_tokens > 0;
  only_if(samples, "train.sample_every", train.sample_every, defaults.sample_every,
          "train.sample_tokens is positive", "train.sample_tokens=200");
  only_if(samples, "train.sample_prompt", train.sample_prompt, defaults.sample_prompt,
          "train.sample_tokens is positive", "train.sample_tokens=200");
  if (samples && (data.tokenizer == "none" || data.format == "synthetic"))
    fail(Exit::config,
         "[train.sample_tokens] {} needs token ids that stand for text; set data.tokenizer and "
         "data.train, or remove train.sample_tokens, train.sample_prompt and train.sample_every",
         train.sample_tokens);
  if (samples && train.sample_prompt.empty())
    fail(Exit::config,
         "[train.sample_prompt] is empty; a sample starts from at least one token, "
         "such as \"\\n\"");
}

}  // namespace

int64_t accumulation(const Config& config, int ranks) {
  const int64_t at_once = config.train.micro_batch * ranks;
  const int64_t wanted = config.train.global_batch;
  if (wanted == 0) return 1;
  if (wanted % at_once == 0) return wanted / at_once;
  fail(Exit::config, "[train.global_batch] {} is not a multiple of micro_batch {} x {} = {}; {}",
       wanted, config.train.micro_batch, plural(ranks, "rank"), at_once,
       nearest_multiples(wanted, at_once));
}

void validate(const Config& config, int ranks) {
  check_model(config.model);
  check_optim(config.optim);
  check_onebit_adam(config);
  check_train(config);
  check_dist(config.dist);
  check_device(config);
  check_cuda_graph(config);
  check_data(config);
  accumulation(config, ranks);
  check_any_world(config, ranks);
  if (config.run_dir.empty())
    fail(Exit::config, "[run_dir] is empty; name the folder of the run, such as runs/first");
  if (config.checkpoint.resume.empty())
    fail(Exit::config, "[checkpoint.resume] is empty; use auto, none or a checkpoint folder");
}

}  // namespace lockstep
