// Ranks that are not the same run are told so, all with the same words.
#include "dist/verify.h"

#include <gtest/gtest.h>

#include "tests/dist/worlds.h"

namespace lockstep {
namespace {

std::string message_of(Communicator& c, const std::string& lines) {
  try {
    check_same(c, "config", lines);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::config);
    return error.what();
  }
  return "";
}

TEST(Verify, EqualLinesPass) {
  on_worlds([](Communicator& c) {
    EXPECT_EQ(message_of(c, "optim.lr = 0.1\noptim.name = sgd\n"), "");
    EXPECT_EQ(message_of(c, ""), "");
  });
}

TEST(Verify, TheFirstDifferentLineIsNamedOnEveryRank) {
  on_worlds([](Communicator& c) {
    if (c.size() < 2) return;
    const bool odd_one = c.rank() == 1;
    const std::string lines =
        fmt::format("optim.name = sgd\noptim.lr = {}\nseed = {}\n", odd_one ? 0.2 : 0.1, c.rank());
    const std::string message = message_of(c, lines);
    for (const char* part : {"config", "rank 1", "optim.lr = 0.1", "optim.lr = 0.2"})
      EXPECT_NE(message.find(part), std::string::npos) << "'" << message << "' lacks " << part;
    const auto all = c.all_gather_bytes(std::as_bytes(std::span(message)));
    for (const auto& theirs : all)
      EXPECT_TRUE(std::ranges::equal(theirs, std::as_bytes(std::span(message))));
  });
}

TEST(Verify, AHashTellsOneBitAndSpeaksOfTheTensor) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  auto describe = [](const char* name, const std::vector<float>& v, Shape shape) {
    const NamedTensor tensor{name, Tensor::from(v, std::move(shape))};
    return describe_with_hashes({&tensor, 1});
  };
  const std::string line = describe("wte", values, {2, 3});
  EXPECT_EQ(line, describe("wte", values, {2, 3}));
  EXPECT_NE(line, describe("wte", values, {3, 2}));
  EXPECT_NE(line, describe("wpe", values, {2, 3}));
  std::vector<float> changed = values;
  changed[5] = std::nextafter(changed[5], 7.0f);
  EXPECT_NE(line, describe("wte", changed, {2, 3}));
  EXPECT_NE(line.find("wte"), std::string::npos);
  EXPECT_NE(line.find("[2, 3]"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
