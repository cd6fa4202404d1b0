// What one rank does or meets, all ranks know.
#include "examples/agree.h"

#include <gtest/gtest.h>

#include "dist/local.h"
#include "tests/file_test_util.h"

namespace lockstep {
namespace {

TEST(Agree, AllSucceed) {
  run_local(3, {}, [](Communicator& c) {
    EXPECT_EQ(all_or_none(c, [&] { return fmt::format("a\n{}", c.rank()); }),
              (std::vector<std::string>{"a\n0", "a\n1", "a\n2"}));
    EXPECT_EQ(on_rank_0(c, [&] { return fmt::format("from {}", c.rank()); }), "from 0");
  });
}

TEST(Agree, FirstFailureIsEveryones) {
  run_local(3, {}, [](Communicator& c) {
    const std::string second = c.topology().describe(1) + ": no luck";
    try {
      all_or_none(c, [&]() -> std::string {
        if (c.rank() == 1) fail(Exit::data, "no luck");
        if (c.rank() == 2) throw std::runtime_error("none either");
        return "";
      });
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), second);
      EXPECT_EQ(error.code(), Exit::data);
    }
    expect_error(Exit::internal, {"not an Error"}, [&] {
      on_rank_0(c, []() -> std::string { throw std::runtime_error("not an Error"); });
    });
    try {
      all_or_none(c, []() -> std::string { fail(Exit::config, "the same everywhere"); });
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "the same everywhere");
    }
  });
}

}  // namespace
}  // namespace lockstep
