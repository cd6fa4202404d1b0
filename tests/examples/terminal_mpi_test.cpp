// Under mpirun stdout is a pseudo-terminal; where mpirun's own stdout is none, nobody watches.
#include <gtest/gtest.h>
#include <unistd.h>

#include "examples/terminal.h"

TEST(Terminal, OfMpirunCounts) {
  EXPECT_TRUE(isatty(STDOUT_FILENO));  // else this test proves nothing
  EXPECT_EQ(lockstep::watching_terminal(), "");
}

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
