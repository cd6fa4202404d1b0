// Checkpoints of sharded and compressed runs: whatever is split among the ranks, and whoever goes
// on from it. Read next: examples/saved_state.h.
#include <algorithm>
#include <cstring>

#include "examples/safetensors.h"
#include "tests/examples/tiny_run.h"

namespace lockstep {
namespace {

// 8 micro-batches of one sample, dealt out to up to 4 ranks.
Json steps(int64_t n) {
  return {{"model", {{"dropout", 0.1}}},
          {"train", {{"steps", n}, {"micro_batch", 1}, {"global_batch", 8}, {"eval_every", 2}}},
          {"checkpoint", {{"keep_last", 3}}}};
}

Json ranks(int n, int stage = 0) {
  return {{"dist",
           {{"backend", "local"}, {"local_ranks", n}, {"zero_stage", stage}, {"bucket_mb", 0.05}}}};
}

Json codec(const std::string& name) {
  if (name == "none") return nullptr;
  Json compression = {{"codec", name}, {"min_elements", 1024}, {"warmup_steps", 1}};
  if (name == "topk") compression["ratio"] = 0.05;
  return {{"dist", {{"compression", compression}}}};
}

const Json any_world = {{"train", {{"reproducible", "any_world"}}}};

class Shards : public TinyRun {
 protected:
  void expect_logged(const std::string& name, const std::string& text) {
    const std::string log = trace(name).log;
    EXPECT_NE(log.find(text), std::string::npos) << "\"" << text << "\" is not in:\n" << log;
  }
  void expect_not_logged(const std::string& name, const std::string& text) {
    const std::string log = trace(name).log;
    EXPECT_EQ(log.find(text), std::string::npos) << log;
  }

  void expect_two_attempts_equal_one(const Json& how) {
    const std::string name = "run_" + std::to_string(++runs_);
    const Json all = merged(steps(5), how);
    trained(name, merged(all, {{"train", {{"steps", 2}}}}));
    const std::string bits = trained(name, all).bits;
    EXPECT_EQ(bits, trained(name + "_in_one_go", all).bits) << how;
    expect_logged(name, "resumed from " + name + "/checkpoints/step-00000002 after step 2");
  }

 private:
  int runs_ = 0;
};

TEST_F(Shards, StepsInTwoAttemptsAreThoseOfOne) {
  expect_two_attempts_equal_one(merged(ranks(2, 3), codec("none")));
  expect_two_attempts_equal_one(merged(ranks(4, 2), codec("int8")));
  expect_two_attempts_equal_one(merged(ranks(2, 0), codec("topk")));
}

TEST_F(Shards, SoakStepsInTwoAttemptsAreThoseOfOne) {
  for (const int n : {2, 4})
    for (const int stage : {0, 1, 2, 3})
      for (const std::string name : {"none", "bf16", "int8", "topk", "rows", "sign"})
        for (const std::string precision : {"fp32", "bf16"})
          expect_two_attempts_equal_one(merged(merged(ranks(n, stage), codec(name)),
                                               {{"train", {{"precision", precision}}}}));
}

}  // namespace
}  // namespace lockstep
