// Whole runs of the trainer with `device: cuda`, on the module made of fibers: what one rank
// computes is what the CPU computes; neither stages nor transports nor the order in which the
// device's streams advance change a bit of what several compute; and every wait between streams and
// host is needed.
#include "tests/examples/tiny_run.h"

namespace lockstep {
namespace {

Json model(const std::string& arch) {
  Json json = {{"model", {{"arch", arch}, {"dropout", 0.1}, {"n_layer", 1}, {"max_seq_len", 16}}},
               {"data", {{"val", ""}}},
               {"train", {{"device", "cuda"}, {"steps", 2}, {"seq_len", 16}, {"micro_batch", 1}}},
               {"dist", {{"accumulate", "reduced"}, {"bucket_mb", 0.03}, {"timeout_s", 10}}}};
  if (arch == "llama") json["model"]["n_kv_head"] = 1;
  return json;
}

// What moves bytes between the ranks: threads and processes through the host, and NCCL.
enum class Way { threads, mpi, nccl };
std::string name_of(Way way) {
  return way == Way::threads ? "threads" : way == Way::mpi ? "mpi" : "nccl";
}

class CudaTraining : public TinyRun {
 protected:
  // Trains on devices whose streams advance in `order`; `without` is a wait that is left out.
  Ended train_on(const Json& changes, Way way, int order, const std::string& without = "") {
    program_ = "env CUDA_ON_CPU_DEVICES=4 CUDA_ON_CPU_STREAMS=" + std::to_string(order) +
               " CUDA_ON_CPU_WITHOUT='" + without + "' " +
               (without.empty() ? "" : "timeout -s KILL 20 ") + GPU_TRAINER;  // nonsense may hang
    name_ = "run_" + std::to_string(++runs_);
    Json config = merged({{"train", {{"global_batch", 2 * ranks_}}}}, changes);
    if (way == Way::threads) config = merged({{"dist", {{"local_ranks", ranks_}}}}, config);
    if (way == Way::nccl) config = merged({{"dist", {{"backend", "nccl"}}}}, config);
    const Launch launch = way == Way::threads ? Launch::alone : Launch::mpirun;
    configure(name_, config, launch);
    return train(name_, launch);
  }

  std::string bits_of(const Json& changes, Way way, int order) {
    const Ended ended = train_on(changes, way, order);
    EXPECT_EQ(ended.code, 0) << name_of(way) << " " << order << " " << changes << ended.errors;
    return ended.code == 0 ? trace(name_).bits : "";
  }

  Json staged(const std::string& arch, int stage) const {
    return merged(model(arch), {{"dist", {{"zero_stage", stage}}}});
  }

  static Json compressed(const char* codec) {
    return {{"dist", {{"compression", {{"codec", codec}, {"min_elements", 0}}}}}};
  }

  // Of `ranks_` ranks, one parameter after the other: what all others must be equal to.
  std::string naive_bits(const std::string& arch) {
    Json naive = merged(model(arch), {{"dist", {{"reducer", "naive"}}}});
    naive["dist"].erase("bucket_mb");
    return bits_of(naive, Way::threads, 1);
  }

  // Whether the run ends as it should, with the bits it should have.
  bool is_right(const std::string& expected, const Json& config, Way way, int order,
                const std::string& without) {
    const Ended ended = train_on(config, way, order, without);
    return ended.code == 0 && trace(name_).bits == expected;
  }

  int runs_ = 0;
  std::string name_;
};

// Both sum at most 32 d_model terms per element in fp32, in different orders.
TEST_F(CudaTraining, OneRankLearnsWhatTheCpuLearns) {
  ranks_ = 1;
  for (const std::string arch : {"gpt2", "llama"}) {
    const Json alone = merged(model(arch), {{"optim", {{"name", "sgd"}, {"lr", 0.1}}}});
    ASSERT_EQ(train_on(alone, Way::threads, 1).code, 0);
    const Trace gpu = trace(name_);
    ASSERT_EQ(train_on(merged(alone, {{"train", {{"device", "cpu"}}}}), Way::threads, 1).code, 0);
    const Trace cpu = trace(name_);
    ASSERT_EQ(gpu.steps.size(), 2u);
    for (const auto& [t, step] : gpu.steps)
      for (const char* what : {"loss", "grad_norm"}) {
        const double expected = cpu.steps.at(t)[what];
        EXPECT_NEAR(step[what].get<double>(), expected, 1024 * 0x1p-24 * expected) << arch << what;
      }
    EXPECT_NE(gpu.log.find("Fibers, 1.5 GiB, sm_90"), std::string::npos) << gpu.log;
  }
}

// Factors lose 13 of 24 bits, each product at most 2 x 2^-11 of its size.
TEST_F(CudaTraining, Tf32LearnsTheSameWithCoarserProducts) {
  ranks_ = 1;
  const Json tf32 = merged(model("gpt2"), {{"train", {{"precision", "tf32"}}}});
  ASSERT_EQ(train_on(tf32, Way::threads, 1).code, 0);
  const Trace coarse = trace(name_);
  ASSERT_EQ(train_on(model("gpt2"), Way::threads, 1).code, 0);
  const Trace exact = trace(name_);
  EXPECT_NE(coarse.bits, exact.bits);
  EXPECT_NE(coarse.log.find("parameters in tf32 on Fibers"), std::string::npos) << coarse.log;
  for (const auto& [t, step] : coarse.steps)
    for (const char* what : {"loss", "grad_norm"}) {
      const double expected = exact.steps.at(t)[what];
      EXPECT_NEAR(step[what].get<double>(), expected, 16 * 0x1p-11 * expected) << t << what;
    }
  setenv("NVIDIA_TF32_OVERRIDE", "0", 1);
  expect_one_line(train_on(tf32, Way::threads, 1), 78,
                  {"[train.precision] tf32, but NVIDIA_TF32_OVERRIDE=0 in the environment forbids "
                   "TF32; unset it, or use fp32"});
  unsetenv("NVIDIA_TF32_OVERRIDE");
}

TEST_F(CudaTraining, StagesTransportsAndOrdersChangeNoBit) {
  const std::string expected = naive_bits("gpt2");
  ASSERT_NE(expected.find("wte.weight.exp_avg"), std::string::npos) << expected;
  EXPECT_EQ(bits_of(staged("gpt2", 0), Way::mpi, 2), expected);
  EXPECT_EQ(bits_of(staged("gpt2", 1), Way::nccl, 3), expected);
  EXPECT_EQ(bits_of(staged("gpt2", 2), Way::threads, 4), expected);
  EXPECT_EQ(bits_of(staged("gpt2", 3), Way::nccl, 5), expected);
}

TEST_F(CudaTraining, ResumingChangesNoBit) {
  const Json whole = merged(staged("llama", 3), {{"train", {{"steps", 4}}}});
  const std::string expected = bits_of(whole, Way::nccl, 6);
  ASSERT_EQ(train_on(staged("llama", 3), Way::threads, 7).code, 0);  // 2 steps
  configure(name_, merged(whole, {{"train", {{"global_batch", 2 * ranks_}}}}));
  ASSERT_EQ(train(name_).code, 0);
  EXPECT_NE(trace(name_).log.find("resumed from"), std::string::npos);
  EXPECT_EQ(trace(name_).bits, expected);
}

// Encoded and decoded where the gradients lie, with error feedback. How long the messages of `rows`
// are is known only there; it is lossless.
TEST_F(CudaTraining, CodecsRunOnTheDevice) {
  const Json int8 = compressed("int8");
  const std::string expected = bits_of(merged(staged("gpt2", 0), int8), Way::threads, 8);
  EXPECT_NE(expected, "");
  EXPECT_EQ(bits_of(merged(staged("gpt2", 3), int8), Way::nccl, 9), expected);
  const Json rows = compressed("rows");
  const std::string exact = naive_bits("gpt2");
  EXPECT_EQ(bits_of(merged(staged("gpt2", 3), rows), Way::nccl, 10), exact);
  EXPECT_EQ(bits_of(merged(staged("gpt2", 0), rows), Way::mpi, 11), exact);
  const Trace gpu = trace(name_);
  const Json cpu = merged(merged(staged("gpt2", 0), rows), {{"train", {{"device", "cpu"}}}});
  ASSERT_EQ(train_on(cpu, Way::mpi, 1).code, 0);
  const Json there = gpu.steps.at(2), here = trace(name_).steps.at(2);
  EXPECT_EQ(there["compression"], here["compression"]);
  const double more = there["wire_bytes"].get<double>() - here["wire_bytes"].get<double>();
  EXPECT_GT(more, 0) << "the length of each message";
  EXPECT_LT(more, 0.01 * here["wire_bytes"].get<double>());
}

TEST_F(CudaTraining, MoreRanksThanDevicesAreRefused) {
  ranks_ = 5;  // on 4 devices
  const Ended ended = train_on(staged("gpt2", 0), Way::nccl, 1);
  EXPECT_EQ(ended.code, 78);
  EXPECT_NE(ended.errors.find("[dist.backend] 5 ranks on host"), std::string::npos) << ended.errors;
}

// NCCL's own sums. Of two ranks they have the bits of ours, because a + b = b + a; of four they do
// not, and the training is the same but for rounding.
TEST_F(CudaTraining, NcclMaySum) {
  const auto stage = [&](int zero_stage, const char* reduce) {
    return merged(staged("gpt2", zero_stage),
                  {{"dist", {{"accumulate", "local"}, {"nccl_reduce", reduce}}}});
  };
  const std::string expected = bits_of(stage(1, "own"), Way::nccl, 12);
  EXPECT_EQ(bits_of(stage(0, "native"), Way::nccl, 13), expected);
  EXPECT_NE(trace(name_).log.find("NCCL sums gradients"), std::string::npos);
  EXPECT_EQ(bits_of(stage(1, "native"), Way::nccl, 14), expected);
  ranks_ = 4;
  const std::string of_four = bits_of(stage(1, "own"), Way::nccl, 15);
  const Trace own = trace(name_);
  EXPECT_NE(bits_of(stage(1, "native"), Way::nccl, 16), of_four);
  for (const auto& [t, step] : trace(name_).steps)
    for (const char* what : {"loss", "grad_norm"}) {
      const double value = own.steps.at(t)[what];
      EXPECT_NEAR(step[what].get<double>(), value, 1024 * 0x1p-24 * value) << t << what;
    }
}

// Each bucket takes 25 ms to exchange and 25 to gather, one after the other; the last one is ready
// when backward is done, so its time, and 25 ms for the norms, is exposed, but for what passes
// until the host notices.
TEST_F(CudaTraining, CommunicationIsTimedOnTheDevice) {
  setenv("CUDA_ON_CPU_NCCL_MS", "25", 1);
  const Json config = merged(staged("gpt2", 0), {{"dist", {{"accumulate", "local"}}}});
  ASSERT_EQ(train_on(config, Way::nccl, 17).code, 0);
  unsetenv("CUDA_ON_CPU_NCCL_MS");
  for (const auto& [t, step] : trace(name_).steps) {
    EXPECT_GE(step["comm_ms"], 3 * 50 + 25) << step;
    EXPECT_GE(step["exposed_comm_ms"], 50) << step;
    EXPECT_LE(step["exposed_comm_ms"], step["comm_ms"]) << step;
    EXPECT_GE(step["compute_ms"], 0) << step;
  }
}

// With three micro-batches per step there are three recordings: gradients are written, added to,
// and sent after that. The third step records, the others after it replay. Dropout draws by step
// and sample, which are no part of a recording. In stage 2 each micro-batch's gradients are sent,
// from where only the recording has them.
TEST_F(CudaTraining, GraphsChangeNoBit) {
  const auto changed = [&](int stage, const char* accumulate, const Json& more) {
    return merged(merged(staged("gpt2", stage), {{"train", {{"steps", 20}, {"global_batch", 6}}},
                                                 {"dist", {{"accumulate", accumulate}}}}),
                  more);
  };
  const Json recorded = {{"train", {{"cuda_graph", true}}}};
  const std::string expected = bits_of(changed(1, "local", {}), Way::nccl, 18);
  EXPECT_EQ(bits_of(changed(1, "local", recorded), Way::nccl, 19), expected);
  EXPECT_NE(trace(name_).log.find("kernels recorded as CUDA graphs"), std::string::npos);
  EXPECT_EQ(trace(name_).steps.at(20)["allocations"], 0);
  EXPECT_EQ(bits_of(changed(0, "local", recorded), Way::threads, 20), expected);
  const std::string reduced = bits_of(changed(0, "reduced", {}), Way::threads, 21);
  EXPECT_EQ(bits_of(changed(2, "reduced", recorded), Way::nccl, 22), reduced);
  EXPECT_EQ(trace(name_).steps.at(20)["allocations"], 0);
}

// What NCCL waits for without an end is given up at the limit of what the ranks do.
TEST_F(CudaTraining, ARankThatDoesNotComeEndsTheRun) {
  const auto stuck = [&](const std::string& after, const Json& dist) {
    setenv("CUDA_ON_CPU_NCCL_STUCK", after.c_str(), 1);
    const Ended ended = train_on(merged(staged("gpt2", 1), {{"dist", dist}}), Way::nccl, 1);
    unsetenv("CUDA_ON_CPU_NCCL_STUCK");
    EXPECT_EQ(ended.code, 75) << ended.errors;
    return ended.errors;
  };
  EXPECT_NE(stuck("0", {{"start_timeout_s", 2}})
                .find("[nccl] ncclCommInitRankConfig at start: not done after 2 s "
                      "(dist.start_timeout_s); a rank is gone or stuck"),
            std::string::npos);
  const std::string in_step = stuck("5", {{"timeout_s", 2}});
  EXPECT_NE(in_step.find("in step 1: not done after 2 s (dist.timeout_s); a rank is gone or stuck"),
            std::string::npos)
      << in_step;
  const std::string in_sum = stuck("1", {{"timeout_s", 2}, {"nccl_reduce", "native"}});
  EXPECT_NE(in_sum.find("[nccl] sum of 'bucket "), std::string::npos) << in_sum;
}

TEST_F(CudaTraining, SoakEveryStageEveryWayInManyOrders) {
  int order = 100;
  for (const std::string arch : {"gpt2", "llama"})
    for (const int ranks : {2, 4}) {
      ranks_ = ranks;
      const std::string expected = naive_bits(arch);
      for (int stage = 0; stage <= 3; ++stage)
        for (const Way way : {Way::threads, Way::mpi, Way::nccl, Way::nccl})
          EXPECT_EQ(bits_of(staged(arch, stage), way, ++order), expected)
              << ranks << " ranks, stage " << stage << ", " << name_of(way) << ", order " << order;
    }
}

TEST_F(CudaTraining, SoakEveryCodecOnTheDevice) {
  for (const char* codec : {"bf16", "topk", "sign"}) {
    const std::string expected =
        bits_of(merged(staged("gpt2", 1), compressed(codec)), Way::threads, 10);
    EXPECT_NE(expected, "") << codec;
    EXPECT_EQ(bits_of(merged(staged("gpt2", 2), compressed(codec)), Way::nccl, 11), expected)
        << codec;
  }
  int order = 30;
  for (const int ranks : {1, 2, 4}) {
    ranks_ = ranks;
    const std::string exact = naive_bits("llama");
    for (int stage = 0; stage <= 3; ++stage)
      for (const Way way : {Way::threads, Way::mpi, Way::nccl})
        EXPECT_EQ(bits_of(merged(staged("llama", stage), compressed("rows")), way, ++order), exact)
            << ranks << " ranks, stage " << stage << ", " << name_of(way) << ", order " << order;
  }
}

TEST_F(CudaTraining, SoakNcclMaySumInEveryStage) {
  const Json native = {{"dist", {{"nccl_reduce", "native"}}}};
  int order = 300;
  for (const std::string arch : {"gpt2", "llama"}) {
    const std::string expected = naive_bits(arch);
    for (int stage = 0; stage <= 3; ++stage)
      EXPECT_EQ(bits_of(merged(staged(arch, stage), native), Way::nccl, ++order), expected)
          << arch << ", stage " << stage << ", order " << order;
  }
  Json naive = merged(merged(model("gpt2"), native), {{"dist", {{"reducer", "naive"}}}});
  naive["dist"].erase("bucket_mb");
  EXPECT_EQ(bits_of(naive, Way::nccl, ++order), naive_bits("gpt2"));
}

TEST_F(CudaTraining, SoakGraphsChangeNoBitWhateverIsExchanged) {
  const Json eager = {{"train", {{"steps", 6}, {"global_batch", 8}}}};
  const Json recorded = {{"train", {{"cuda_graph", true}}}};
  const Json variants[] = {{{"dist", {{"accumulate", "reduced"}}}},
                           {{"train", {{"recompute", "block"}, {"precision", "bf16"}}}},
                           {{"train", {{"reproducible", "any_world"}}}},
                           {{"dist", {{"overlap", false}}}},
                           compressed("int8"),
                           merged(compressed("int8"), {{"dist", {{"accumulate", "local"}}}})};
  int order = 400;
  for (const std::string arch : {"gpt2", "llama"})
    for (const Json& variant : variants)
      for (const int stage : {0, 1, 2}) {
        const Json config = merged(merged(staged(arch, stage), eager), variant);
        if (stage == 2 && config["dist"]["accumulate"] == "local") continue;  // refused
        const std::string expected = bits_of(config, Way::nccl, ++order);
        EXPECT_EQ(bits_of(merged(config, recorded), Way::nccl, ++order), expected)
            << arch << stage << variant;
      }
}

TEST_F(CudaTraining, SoakAnyWorldChangesNoBit) {
  const Json any_world = {{"train", {{"reproducible", "any_world"}, {"global_batch", 8}}},
                          {"dist", {{"accumulate", "auto"}}}};
  ranks_ = 1;
  const std::string expected = bits_of(merged(staged("gpt2", 0), any_world), Way::threads, 1);
  for (const int ranks : {2, 4})
    for (const int stage : {0, 2}) {
      ranks_ = ranks;
      EXPECT_EQ(bits_of(merged(staged("gpt2", stage), any_world), Way::nccl, stage), expected)
          << ranks << " ranks, stage " << stage;
    }
}

struct Edge {
  const char* without;
  const char* what;
  Way way;
  const char* codec = nullptr;
  bool recorded = false;
};
const Edge edges[] = {
    {"comm<compute", "an exchange waits for the gradients that are exchanged", Way::nccl},
    {"comm<compute", "an exchange waits for the gradients that are read down", Way::mpi},
    {"compute<comm", "the update waits for the sums", Way::nccl},
    {"compute<comm", "the update waits for the sums that are written up", Way::mpi},
    {"host<compute", "pinned memory waits for the copy of what it held before", Way::threads},
    {"host<comm", "the host's exchange waits for what is read down", Way::mpi},
    {"host<comm", "the host waits for what parts tell of their length", Way::nccl, "rows"},
    {"sync<compute", "the host waits for the loss and the norms that it reads", Way::nccl},
    {"comm<compute", "an exchange waits for the graph that computes", Way::nccl, nullptr, true},
    {"compute<comm", "a graph waits for the parameters that it reads", Way::nccl, nullptr, true},
};

// Without a wait some order goes wrong; with it none does, which the tests above show.
TEST_F(CudaTraining, SoakEveryWaitIsNeeded) {
  const std::string plain = naive_bits("gpt2");
  const Json longer = {{"train", {{"steps", 5}}}};
  const std::string of_graphs = bits_of(merged(staged("gpt2", 2), longer), Way::threads, 1);
  const Json recorded = merged(longer, {{"train", {{"cuda_graph", true}}}});
  for (const Edge& edge : edges) {
    const Json more = edge.recorded ? recorded : edge.codec ? compressed(edge.codec) : Json();
    const std::string& expected = edge.recorded ? of_graphs : plain;
    constexpr int most = 12;
    int order = 1;
    while (order <= most &&
           is_right(expected, merged(staged("gpt2", edge.recorded ? 2 : order % 4), more), edge.way,
                    order, edge.without))
      ++order;
    EXPECT_LE(order, most) << edge.without << ": " << edge.what << " (" << name_of(edge.way) << ")";
  }
}

}  // namespace
}  // namespace lockstep
