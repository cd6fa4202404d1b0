// Pieces of tensors put together: any cut from any other, residuals by rank, and every way in which
// files can fail to hold what is wanted.
#include "examples/saved_state.h"

#include <cmath>
#include <cstring>

#include "tests/file_test_util.h"

namespace lockstep {
namespace {

constexpr int64_t count = 1000;

// Element i of a tensor is i, so that a piece in the wrong place shows.
Tensor counting(int64_t begin, int64_t end, float scale = 1) {
  std::vector<float> values;
  for (int64_t i = begin; i < end; ++i) values.push_back(scale * static_cast<float>(i));
  return Tensor::from(values, {1, end - begin});
}

std::string piece(const std::string& tensor, int64_t begin, int64_t end,
                  const std::string& suffix = "") {
  return fmt::format("{}[{}:{}]{}", tensor, begin, end, suffix);
}

// A checkpoint of what `state_of` returns for each rank; none where it is null.
Checkpoint save(const TempFolder& folder, int ranks,
                const std::function<std::vector<NamedTensor>(int)>& state_of) {
  Checkpoint checkpoint{folder.path(), 1, ranks, "{}", {}};
  for (int rank = 0; rank < ranks; ++rank)
    for (const CheckpointFile& file : state_files(rank, state_of(rank)))
      checkpoint.files[file.name] = write_safetensors(folder / file.name, file.tensors);
  return checkpoint;
}

void expect_same_bits(const Tensor& a, const Tensor& b) {
  ASSERT_EQ(a.bytes(), b.bytes());
  EXPECT_EQ(std::memcmp(a.raw(), b.raw(), a.bytes()), 0);
}

// Where rank `rank` of `ranks` begins, all of them unequal.
int64_t edge(int rank, int ranks) {
  return count * rank * rank / (ranks * ranks);
}

TEST(SavedState, AnyCutFromAnyOther) {
  for (int ranks : {1, 2, 3, 7}) {
    TempFolder folder;
    const Checkpoint checkpoint = save(folder, ranks, [&](int r) -> std::vector<NamedTensor> {
      const int64_t begin = edge(r, ranks), end = edge(r + 1, ranks);
      return {{piece("w", begin, end), counting(begin, end)},
              {piece("w", begin, end, ".exp_avg"), counting(begin, end, 2)},
              {"all", counting(0, count, 3)}};
    });
    const SavedState saved(checkpoint);
    EXPECT_TRUE(saved.contains("w.exp_avg"));
    EXPECT_FALSE(saved.contains("v"));
    const Tensor whole = Tensor::zeros({10, count / 10});
    saved.read({"w", whole});
    expect_same_bits(whole, counting(0, count));
    for (int others : {1, 2, 4, 5})
      for (int r = 0; r < others; ++r) {
        const int64_t begin = edge(r, others), end = edge(r + 1, others);
        const Tensor part = Tensor::zeros({1, end - begin});
        saved.read({piece("w", begin, end), part});
        expect_same_bits(part, counting(begin, end));
        saved.read({piece("w", begin, end, ".exp_avg"), part});
        expect_same_bits(part, counting(begin, end, 2));
        saved.read({piece("all", begin, end), part});
        expect_same_bits(part, counting(begin, end, 3));
      }
  }
}

TEST(SavedState, OnlyRank0SavesCopies) {
  const std::vector<NamedTensor> state = {{"w", counting(0, 4)},
                                          {piece("w", 0, 4, ".residual"), counting(0, 4)}};
  EXPECT_EQ(state_files(0, state)[0].name, "rank-000.safetensors");
  EXPECT_EQ(state_files(0, state)[0].tensors.size(), 2u);
  EXPECT_EQ(state_files(12, state)[0].name, "rank-012.safetensors");
  EXPECT_EQ(state_files(12, state)[0].tensors.size(), 1u);
  EXPECT_TRUE(state_files(1, {{"w", counting(0, 4)}}).empty());
}

// Sums are exact here, so that conservation can be asked for to the bit.
TEST(SavedState, ResidualsAreSummedSoThatNothingIsLost) {
  constexpr int before = 5;
  TempFolder folder;
  const SavedState saved(save(folder, before, [](int r) -> std::vector<NamedTensor> {
    const auto scale = static_cast<float>(1 << r);
    return {
        {piece("w", 0, 300, ".residual"), counting(0, 300, scale)},
        {piece("w", 300, count, ".residual"), counting(300, count, scale)},
        {piece("w", 0, count, ".rank_momentum"), counting(0, count, 2 * scale)},
        {piece("w", 200 * r, 200 * (r + 1), ".owner_residual"), counting(200 * r, 200 * (r + 1))}};
  }));
  const std::vector<std::pair<int, std::vector<float>>> cases = {
      {1, {31}}, {2, {1 + 4 + 16, 2 + 8}}, {5, {1, 2, 4, 8, 16}}, {7, {1, 2, 4, 8, 16, 0, 0}}};
  for (const auto& [ranks, factors] : cases)
    for (int r = 0; r < ranks; ++r) {
      const Tensor residual = counting(0, count, -1), owned = counting(0, 500, -1),
                   momentum = counting(0, count, -1);
      const std::vector<NamedTensor> state = {{piece("w", 0, count, ".residual"), residual},
                                              {piece("w", 0, count, ".rank_momentum"), momentum},
                                              {piece("w", 500, 1000, ".owner_residual"), owned}};
      saved.restore(state, r, ranks);
      expect_same_bits(residual, counting(0, count, factors[r]));
      expect_same_bits(momentum, counting(0, count, 2 * factors[r]));
      expect_same_bits(owned, counting(500, 1000));
      EXPECT_EQ(saved.residual_notes(state, ranks).size(), ranks == before ? 0u : 1u);
      if (ranks == 2) {
        EXPECT_EQ(saved.residual_notes(state, ranks)[0],
                  "what codecs left out of 1 parameter on 5 ranks is summed up on 2");
      }
    }
}

TEST(SavedState, ResidualsOfAsManyRanksKeepTheirBits) {
  TempFolder folder;
  const std::vector<float> odd = {-0.0f, 1e-45f, std::nanf("7"), -3};
  const SavedState saved(save(folder, 2, [&](int) -> std::vector<NamedTensor> {
    return {{piece("w", 0, 4, ".residual"), Tensor::from(odd, {1, 4})}};
  }));
  const Tensor residual = Tensor::zeros({1, 4});
  saved.restore({{piece("w", 0, 4, ".residual"), residual}}, 1, 2);
  expect_same_bits(residual, Tensor::from(odd, {1, 4}));
}

TEST(SavedState, ErrorFeedbackTurnedOnOrOffIsTold) {
  TempFolder folder;
  const SavedState saved(save(folder, 1, [](int) -> std::vector<NamedTensor> {
    return {{piece("v", 0, 4, ".residual"), counting(0, 4)}};
  }));
  EXPECT_EQ(
      saved.residual_notes({}, 1),
      (std::vector<std::string>{"what codecs left out of 1 parameter is dropped: nothing makes "
                                "up for it without error feedback"}));
  const Tensor residual = counting(0, 4), owned = counting(0, 4);
  const std::vector<NamedTensor> state = {{piece("w", 0, 4, ".residual"), residual},
                                          {piece("w", 0, 4, ".owner_residual"), owned}};
  EXPECT_EQ(saved.residual_notes(state, 1)[0],
            "error feedback of 1 parameter starts from zero: the checkpoint has none");
  saved.restore(state, 0, 1);
  expect_same_bits(residual, Tensor::zeros({1, 4}));
  expect_same_bits(owned, Tensor::zeros({1, 4}));
}

TEST(SavedState, WhatIsMissingIsNamed) {
  TempFolder folder;
  const Checkpoint checkpoint = save(folder, 3, [](int r) -> std::vector<NamedTensor> {
    if (r == 1) return {{piece("half", 0, 4), Tensor::zeros({1, 4}, DType::bf16)}};
    return {{piece("w", 400 * r, 400 * r + 200), counting(400 * r, 400 * r + 200)},
            {piece("twice", 0, 4), counting(0, 4)},
            {piece("v", 4 * r, 4 * r + 4, ".residual"), counting(0, 4)},
            {piece("short", 0, 8), counting(0, 4)}};
  });
  const SavedState saved(checkpoint);
  const auto refused = [&](const std::string& name, const Tensor& tensor,
                           const std::vector<std::string>& parts) {
    std::vector<std::string> all = {"[checkpoint] " + folder.path() + ": "};
    all.insert(all.end(), parts.begin(), parts.end());
    expect_error(Exit::data, all, [&] { saved.read({name, tensor}); });
  };
  refused("u", counting(0, 4), {"no tensor \"u\" in its 3 files of tensors"});
  refused(piece("w", 100, 1000), counting(100, 1000),
          {"elements [200:800] of \"w\" are in no file; rank-002.safetensors goes on with 800"});
  refused(piece("w", 900, 1200), counting(900, 1200),
          {"elements [1000:1200] of \"w\" are in no file; rank-002.safetensors is the last"});
  refused(piece("half", 0, 4), counting(0, 4),
          {"\"half[0:4]\" in rank-001.safetensors is BF16[1, 4], 4 elements of F32 are wanted"});
  refused(piece("short", 0, 8), counting(0, 8), {"\"short[0:8]\"", "is F32[1, 4], 8 elements"});
  refused(piece("twice", 0, 5), counting(0, 5),
          {"elements [0:4] of \"twice\" are in rank-000.safetensors and again in "
           "rank-002.safetensors"});
  refused("w", Tensor::zeros({30, 30}),
          {"\"w\" has 1000 elements in rank-002.safetensors, [30, 30] is wanted"});
  expect_error(Exit::data, {"rank-001.safetensors has no tensor \"v.residual\""}, [&] {
    saved.restore({{piece("v", 0, 4, ".residual"), counting(0, 4)}}, 1, 3);
  });
  write_safetensors(folder / "x", std::vector<NamedTensor>{{"w", Tensor::zeros({2, 3})}});
  expect_error(Exit::data, {"\"w\" has 6 elements as [2, 3] in x, [3, 2] is wanted"}, [&] {
    SavedState(folder / "x").read({"w", Tensor::zeros({3, 2})});
  });
}

TEST(SavedState, WeightsMustBeNumbers) {
  Tensor weight = counting(0, 8);
  EXPECT_NO_THROW(check_finite({"w", weight}, "there"));
  weight.data<float>()[5] = INFINITY;
  expect_error(Exit::data, {"[checkpoint] there: \"w\" has inf at element 5; the run"}, [&] {
    check_finite({"w", weight}, "there");
  });
}

}  // namespace
}  // namespace lockstep
