// Which settings of a run must not change a bit of it: its losses and the checkpoint at its end.
// Read next: training_resume_test.cpp.
#include "tests/examples/tiny_run.h"

namespace lockstep {
namespace {

// Dropout, two micro batches per step and an evaluation on the way, so that all that is random or
// summed takes part.
Json model(const std::string& arch, const std::string& precision) {
  Json json = {
      {"model", {{"arch", arch}, {"dropout", 0.1}}},
      {"train", {{"precision", precision}, {"steps", 4}, {"global_batch", 8}, {"eval_every", 2}}}};
  if (arch == "llama") json["model"]["n_kv_head"] = 1;
  return json;
}

struct Variant {
  std::string name;
  Json changes;
  Launch launch = Launch::alone;
};

const Json naive = {{"dist", {{"reducer", "naive"}}}};

class Bits : public TinyRun {
 protected:
  void expect_equal(const Json& model, const std::vector<Variant>& variants) {
    const std::string prefix = "model_" + std::to_string(++models_) + "_";
    const std::string expected = trained(prefix + "naive", merged(model, naive)).bits;
    EXPECT_NE(expected.find("\nwte.weight.exp_avg "), std::string::npos) << expected;
    for (const Variant& v : variants) {
      EXPECT_EQ(trained(prefix + v.name, merged(model, v.changes), v.launch).bits, expected)
          << v.name << " of " << model;
    }
  }

  int models_ = 0;
};

TEST_F(Bits, DoNotDependOnReducerTransportBucketsOverlapWorkersRecomputation) {
  // Each variant moves several switches; the soak test moves them one by one.
  const std::vector<Variant> variants = {
      {"tiny_buckets", {{"dist", {{"bucket_mb", 0.001}}}, {"data", {{"workers", 0}}}}},
      {"afterwards", {{"dist", {{"overlap", false}}}, {"data", {{"workers", 3}}}}},
      {"mpi",
       {{"dist", {{"bucket_mb", 0.05}}}, {"train", {{"recompute", "block"}}}},
       Launch::mpirun}};
  expect_equal(model("gpt2", "fp32"), variants);
  expect_equal(model("llama", "bf16"), variants);
}

TEST_F(Bits, SoakEachSwitchAlone) {
  std::vector<Variant> variants = {
      {"bucketed", {}},
      {"tiny_buckets", {{"dist", {{"bucket_mb", 0.001}}}}},
      {"afterwards", {{"dist", {{"overlap", false}}}}},
      {"workers_0", {{"data", {{"workers", 0}}}}},
      {"workers_3", {{"data", {{"workers", 3}}}}},
      {"recompute", {{"train", {{"recompute", "block"}}}}},
      {"verify", {{"dist", {{"verify_every", 1}}}}},
      {"mpi", {}, Launch::mpirun},
      {"mpi_naive", naive, Launch::mpirun},
      {"mpi_tiny_buckets", {{"dist", {{"bucket_mb", 0.001}}}}, Launch::mpirun},
      {"mpi_afterwards", {{"dist", {{"overlap", false}}}}, Launch::mpirun}};
  for (const std::string arch : {"gpt2", "llama"})
    for (const std::string precision : {"fp32", "bf16"})
      expect_equal(model(arch, precision), variants);
}

TEST_F(Bits, SoakAnotherSeedGivesOthers) {
  const Json one = model("gpt2", "fp32");
  Json other = one;
  other["train"]["seed"] = 1;
  EXPECT_NE(trained("one", one).bits, trained("other", other).bits);
}

}  // namespace
}  // namespace lockstep
