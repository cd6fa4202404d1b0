// Foreign launchers, cores, and the environment that is logged and compared.
#include "dist/launch.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "core/error.h"

namespace lockstep {
namespace {

// Sets variables for one test and clears all that could disturb it.
class Launch : public testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    for (const char* name :
         {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", "SLURM_NTASKS", "OMPI_MCA_btl",
          "OMPI_MCA_orte_launch", "OMPI_MCA_plm", "DNNL_MAX_CPU_ISA"})
      unsetenv(name);
  }
};

TEST_F(Launch, AForeignLauncherIsAConfigError) {
  setenv("SLURM_NTASKS", "4", 1);
  EXPECT_NO_THROW(check_launch(4));
  try {
    check_launch(1);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::config);
    EXPECT_STREQ(error.what(),
                 "[launch] SLURM_NTASKS=4 announces 4 ranks, but this process sees only itself: it "
                 "was started by another MPI's launcher or without one; start it with Open MPI's "
                 "`mpirun -np 4 trainer ...`, or unset SLURM_NTASKS for a single process");
  }
}

TEST_F(Launch, OneRankIsFine) {
  EXPECT_NO_THROW(check_launch(1));
  setenv("PMI_SIZE", "1", 1);
  EXPECT_NO_THROW(check_launch(1));
}

TEST_F(Launch, MpirunInsideAnAllocationKnowsBetter) {
  setenv("SLURM_NTASKS", "8", 1);
  setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
  EXPECT_NO_THROW(check_launch(1));
}

TEST_F(Launch, CoresAndTheRemedy) {
  EXPECT_GE(cores().usable, 1);
  EXPECT_LE(cores().usable, cores().present);
  EXPECT_EQ(cores_advice({.usable = 2, .present = 2}, 2, 1), "");
  EXPECT_EQ(cores_advice({.usable = 1, .present = 2}, 2, 1),
            "each rank may use 1 of 2 cores, shared with its communication and prefetch threads: "
            "mpirun binds ranks to cores; start with `mpirun --bind-to none`");
  EXPECT_EQ(cores_advice({.usable = 2, .present = 2}, 4, 1),
            "4 ranks x 1 thread on 2 cores: use fewer ranks or threads");
}

TEST_F(Launch, TheEnvironmentThatMattersWithoutTheLaunchersOwn) {
  setenv("OMPI_MCA_btl", "tcp,self", 1);
  setenv("OMPI_MCA_orte_launch", "1", 1);
  setenv("OMPI_MCA_plm", "rsh", 1);  // set on other hosts than mpirun's
  setenv("DNNL_MAX_CPU_ISA", "AVX2", 1);
  std::string found;
  for (const auto& [name, value] : relevant_environment()) found += name + "=" + value + ";";
  EXPECT_NE(found.find("DNNL_MAX_CPU_ISA=AVX2;"), std::string::npos) << found;
  EXPECT_NE(found.find("OMPI_MCA_btl=tcp,self;"), std::string::npos) << found;
  EXPECT_EQ(found.find("orte"), std::string::npos) << found;
  EXPECT_EQ(found.find("plm"), std::string::npos) << found;
}

TEST_F(Launch, HostsHaveNamesAndIdentities) {
  EXPECT_FALSE(host_name().empty());
  EXPECT_EQ(host_identity(), host_identity());
  EXPECT_GT(host_identity().size(), 8u);
}

}  // namespace
}  // namespace lockstep
