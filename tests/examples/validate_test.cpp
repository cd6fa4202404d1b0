// Every rule between config keys, by its message; and the arithmetic of accumulation.
#include "examples/validate.h"

#include <gtest/gtest.h>

#include <functional>

#include "core/error.h"
#include "examples/config_io.h"
#include "tests/file_test_util.h"

namespace lockstep {
namespace {

Config valid() {
  Config config;
  config.data.train = "train_*.bin";
  return config;
}

std::string message(const std::function<void(Config&)>& change, int ranks = 2) {
  Config config = valid();
  change(config);
  try {
    validate(config, ranks);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::config);
    return error.what();
  }
  return "no error";
}

TEST(Validate, DefaultsWithDataAreValid) {
  for (const int ranks : {1, 2, 7}) EXPECT_EQ(message([](Config&) {}, ranks), "no error");
}

TEST(Validate, GlobalBatch) {
  const auto with = [](int64_t global) {
    return [=](Config& c) { c.train.micro_batch = 4, c.train.global_batch = global; };
  };
  EXPECT_EQ(message(with(30), 3),
            "[train.global_batch] 30 is not a multiple of micro_batch 4 x 3 ranks = 12; 24 and 36 "
            "are");
  EXPECT_EQ(message(with(8), 3),
            "[train.global_batch] 8 is not a multiple of micro_batch 4 x 3 ranks = 12; 12 is the "
            "least that is");
  EXPECT_EQ(message(with(36), 3), "no error");
  Config config = valid();
  EXPECT_EQ(accumulation(config, 5), 1);
  with(36)(config);
  EXPECT_EQ(accumulation(config, 3), 3);
  EXPECT_EQ(accumulation(config, 1), 9);
}

TEST(Validate, Model) {
  EXPECT_EQ(message([](Config& c) { c.model.d_model = 100, c.model.n_head = 6; }),
            "[model.d_model] 100 is not a multiple of model.n_head 6; 96 and 102 are");
  EXPECT_EQ(message([](Config& c) { c.model.d_model = 4, c.model.n_head = 6; }),
            "[model.d_model] 4 is not a multiple of model.n_head 6; 6 is the least that is");
  EXPECT_EQ(message([](Config& c) { c.model.arch = "llama", c.model.n_kv_head = 4; }),
            "[model.n_kv_head] 4 does not divide model.n_head 6; use a divisor, or 0");
  EXPECT_EQ(message([](Config& c) { c.model.arch = "llama", c.model.d_model = 18; }),
            "[model.n_head] d_model 18 / n_head 6 = 3 values per head, but rotary positions turn "
            "pairs of values; make it even");
}

TEST(Validate, Attention) {
  EXPECT_EQ(message([](Config& c) { c.train.attention = "cudnn"; }),
            "[train.attention] cudnn is for train.device cuda, not cpu; use auto or own");
  EXPECT_EQ(message([](Config& c) { c.train.attention = "own"; }), "no error");
}

TEST(Validate, Precision) {
  EXPECT_EQ(message([](Config& c) { c.train.precision = "tf32"; }),
            "[train.precision] tf32 is how a GPU multiplies, and train.device cpu cannot; use "
            "fp32, or train.device cuda");
  EXPECT_EQ(message([](Config& c) { c.train.precision = "tf32", c.train.device = "cuda"; }),
            "no error");
}

TEST(Validate, Optim) {
  EXPECT_EQ(message([](Config& c) { c.optim.betas = {0.9}; }),
            "[optim.betas] has 1 numbers; AdamW takes two, such as [0.9, 0.95]");
  EXPECT_EQ(message([](Config& c) { c.optim.lr_scaling = "sqrt"; }),
            "[optim.lr_scaling] sqrt needs optim.base_batch_tokens, the tokens per step that "
            "optim.lr was tuned for; set it, or use none");
}

TEST(Validate, OnebitAdam) {
  const auto changed = [](const std::function<void(Config&)>& change) {
    return message([&](Config& c) {
      c.optim.name = "onebit_adam";
      c.dist.compression.codec = "sign", c.dist.compression.warmup_steps = 100;
      change(c);
    });
  };
  EXPECT_EQ(changed([](Config&) {}), "no error");
  EXPECT_EQ(changed([](Config& c) {
              c.dist.compression.codec = "topk";
              c.dist.compression.error_feedback = false;
            }),
            "no error");
  EXPECT_EQ(changed([](Config& c) { c.dist.compression.codec = "rows"; }),
            "[optim.name] onebit_adam is Adam for gradients that a codec makes smaller; set "
            "dist.compression.codec to a lossy one, such as sign, found rows, or use adamw");
  EXPECT_EQ(changed([](Config& c) { c.dist.compression.warmup_steps = 0; }),
            "[dist.compression.warmup_steps] 0 leaves onebit_adam no step to learn its second "
            "moment in; 15 to 25 % of train.steps is what its paper takes");
  EXPECT_EQ(changed([](Config& c) {
              c.optim.betas = {0, 0.95};
            }),
            "[optim.betas] [0,0.95] leave onebit_adam no momentum to send; use [0.9, 0.95], or "
            "adamw");
}

TEST(Validate, Train) {
  EXPECT_EQ(message([](Config& c) { c.train.seq_len = 257; }),
            "[train.seq_len] 257 is more than model.max_seq_len 256; shorten the one or raise the "
            "other");
}

TEST(Validate, Dist) {
  EXPECT_EQ(message([](Config& c) { c.dist.backend = "nccl"; }),
            "[dist.backend] nccl exchanges between GPUs; use train.device cuda, or dist.backend "
            "mpi");
  EXPECT_EQ(message([](Config& c) { c.dist.backend = "local", c.dist.local_ranks = 2; }),
            "no error");
}

TEST(Validate, CudaGraph) {
  const auto recorded = [](const std::function<void(Config&)>& change) {
    return message([&](Config& c) {
      c.train.device = "cuda", c.train.cuda_graph = true;
      change(c);
    });
  };
  EXPECT_EQ(recorded([](Config& c) { c.dist.zero_stage = 1; }), "no error");
  EXPECT_EQ(recorded([](Config& c) { c.model.dropout = 0.1; }), "no error");
  EXPECT_EQ(recorded([](Config& c) { c.train.device = "cpu"; }),
            "[train.cuda_graph] records a GPU's kernels; use train.device cuda, or leave it out");
  EXPECT_EQ(recorded([](Config& c) { c.dist.zero_stage = 2; }), "no error");
  EXPECT_EQ(
      recorded([](Config& c) { c.dist.zero_stage = 2, c.dist.accumulate = "local"; }),
      "[train.cuda_graph] with dist.zero_stage 2 and dist.accumulate local gradients that grow "
      "from micro-step to micro-step have no one place; use dist.accumulate reduced");
  EXPECT_EQ(
      recorded([](Config& c) { c.dist.zero_stage = 3; }),
      "[train.cuda_graph] with dist.zero_stage 3 parameters come and go within a micro-step, "
      "and a recording needs them in one place; use 0, 1 or 2, or leave train.cuda_graph out");
  EXPECT_EQ(recorded([](Config& c) { c.dist.reducer = "naive"; }),
            "[train.cuda_graph] needs dist.reducer bucketed, found naive");
}

TEST(Validate, NcclReduce) {
  const auto native = [](const std::function<void(Config&)>& change) {
    return message([&](Config& c) {
      c.train.device = "cuda", c.dist.backend = "nccl", c.dist.nccl_reduce = "native";
      change(c);
    });
  };
  EXPECT_EQ(native([](Config&) {}), "no error");
  EXPECT_EQ(native([](Config& c) { c.dist.compression.codec = "bf16"; }),
            "[dist.nccl_reduce] native, but NCCL cannot sum what codec bf16 makes of gradients; "
            "use own, or dist.compression.codec none");
  EXPECT_EQ(native([](Config& c) { c.train.reproducible = "any_world"; }),
            "[train.reproducible] any_world needs dist.nccl_reduce own: NCCL sums in an order of "
            "its own");
}

TEST(Validate, Data) {
  EXPECT_EQ(message([](Config& c) { c.data.train = ""; }),
            "[data.train] is empty; name token shards (`trainer data` makes them from text), or "
            "use data.format synthetic");
  EXPECT_EQ(message([](Config& c) { c.data.train = "", c.data.format = "synthetic"; }), "no error");
  EXPECT_EQ(message([](Config& c) {
              c.data.train = "", c.data.format = "synthetic", c.train.eval_every = 10;
            }),
            "no error");
  EXPECT_EQ(message([](Config& c) { c.model.vocab_size = 255; }),
            "[model.vocab_size] 255 is less than the 256 ids of data.tokenizer bytes; use at least "
            "256");
}

TEST(Validate, Samples) {
  EXPECT_EQ(
      message([](Config& c) { c.train.sample_tokens = 9, c.data.tokenizer = "none"; }),
      "[train.sample_tokens] 9 needs token ids that stand for text; set data.tokenizer and "
      "data.train, or remove train.sample_tokens, train.sample_prompt and train.sample_every");
  EXPECT_EQ(message([](Config& c) { c.train.sample_tokens = 9, c.train.sample_prompt = ""; }),
            "[train.sample_prompt] is empty; a sample starts from at least one token, such as "
            "\"\\n\"");
}

// Keys that are set where they mean nothing. The message names two cures as they are typed, so both
// are tried: each makes a valid config of the refused one.
TEST(Validate, KeysThatMeanNothing) {
  struct Case {
    std::vector<std::string> set;
    std::string condition, cure, removed;
  };
  const std::string naive = "dist.reducer=naive", bucketed = "dist.reducer=bucketed",
                    adam = "optim.name is adamw or onebit_adam",
                    val = "data.val names validation shards",
                    samples = "train.sample_tokens is positive",
                    codec = "dist.compression.codec is not none",
                    int8 = "dist.compression.codec=int8";
  const std::vector<Case> cases = {
      {{"model.n_kv_head=2"}, "model.arch is llama", "model.arch=llama", "model.n_kv_head=0"},
      {{"model.rope_theta=5e5"},
       "model.arch is llama",
       "model.arch=llama",
       "model.rope_theta=10000"},
      {{"optim.name=sgd", "optim.betas=[0.5,0.5]"},
       adam,
       "optim.name=adamw",
       "optim.betas=[0.9,0.95]"},
      {{"optim.name=sgd", "optim.eps=1"}, adam, "optim.name=adamw", "optim.eps=1e-08"},
      {{"optim.momentum=0.5"}, "optim.name is sgd", "optim.name=sgd", "optim.momentum=0.9"},
      {{"optim.base_batch_tokens=9"},
       "optim.lr_scaling is linear or sqrt",
       "optim.lr_scaling=sqrt",
       "optim.base_batch_tokens=0"},
      {{"optim.schedule=constant", "optim.min_lr_ratio=0.5"},
       "optim.schedule is cosine, linear or wsd",
       "optim.schedule=cosine",
       "optim.min_lr_ratio=0.1"},
      {{"optim.wsd_decay_share=0.5"},
       "optim.schedule is wsd",
       "optim.schedule=wsd",
       "optim.wsd_decay_share=0.2"},
      {{"dist.local_ranks=2"},
       "dist.backend is local (with mpi, mpirun's -np is the number of ranks)",
       "dist.backend=local",
       "dist.local_ranks=1"},
      {{naive, "dist.bucket_mb=1"}, "dist.reducer is bucketed", bucketed, "dist.bucket_mb=4"},
      {{naive, "dist.overlap=false"}, "dist.reducer is bucketed", bucketed, "dist.overlap=true"},
      {{"train.device=cuda", "dist.nccl_reduce=native"},
       "dist.backend is nccl",
       "dist.backend=nccl",
       "dist.nccl_reduce=own"},
      {{"dist.compression.ratio=0.5"},
       "dist.compression.codec is topk",
       "dist.compression.codec=topk",
       "dist.compression.ratio=0.01"},
      {{"dist.compression.codec=rows", "dist.compression.error_feedback=false"},
       "dist.compression.codec is lossy",
       int8,
       "dist.compression.error_feedback=true"},
      {{"dist.compression.warmup_steps=5"}, codec, int8, "dist.compression.warmup_steps=0"},
      {{"dist.compression.min_elements=1"}, codec, int8, "dist.compression.min_elements=65536"},
      {{"train.eval_every=10"}, val, "data.val=SHARDS", "train.eval_every=0"},
      {{"train.eval_batches=10"}, val, "data.val=SHARDS", "train.eval_batches=0"},
      {{"train.sample_every=10"}, samples, "train.sample_tokens=200", "train.sample_every=0"},
      {{"train.sample_prompt=x"},
       samples,
       "train.sample_tokens=200",
       "train.sample_prompt='\"\\n\"'"},
  };
  const TempFolder folder;
  write_text(folder / "run.json", R"({"data": {"train": "train_*.bin"}})");
  for (const Case& c : cases) {
    const auto told = [&](std::string cure) {
      std::erase(cure, '\'');  // as a shell does
      std::vector<std::string> set = c.set;
      if (!cure.empty()) set.push_back(cure);
      return message([&](Config& config) { config = read_config(folder / "run.json", set); });
    };
    const std::string key = c.removed.substr(0, c.removed.find('='));
    EXPECT_EQ(told(""), fmt::format("[{0}] means nothing unless {1}; use --set {2}, or remove {0}, "
                                    "as --set {3} does",
                                    key, c.condition, c.cure, c.removed));
    EXPECT_EQ(told(c.cure), "no error") << key;
    EXPECT_EQ(told(c.removed), "no error") << key;
  }
}

TEST(Validate, Folders) {
  EXPECT_EQ(message([](Config& c) { c.run_dir = ""; }),
            "[run_dir] is empty; name the folder of the run, such as runs/first");
  EXPECT_EQ(message([](Config& c) { c.checkpoint.resume = ""; }),
            "[checkpoint.resume] is empty; use auto, none or a checkpoint folder");
}

}  // namespace
}  // namespace lockstep
