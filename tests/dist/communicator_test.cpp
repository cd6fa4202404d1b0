// Every operation of a Communicator, in every kind of world. Read next:
// communicator_lengths_test.cpp.
#include "dist/communicator.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "dist/bench_comm.h"
#include "tests/dist/communicator_data.h"
#include "tests/dist/worlds.h"

namespace lockstep {
namespace {

TEST(Communicator, TopologyCountsHosts) {
  on_worlds([](Communicator& c) {
    const Topology& t = c.topology();
    ASSERT_EQ(t.size, static_cast<int>(t.host_of.size()));
    EXPECT_EQ(std::count(t.host_of.begin(), t.host_of.end(), t.host_of[t.rank]), t.local_size);
    EXPECT_LT(t.local_rank, t.local_size);
    EXPECT_EQ(t.host_of[0], 0);
    EXPECT_FALSE(t.host_name[t.rank].empty());
  });
}

TEST(Communicator, ExchangeYieldsMyPartOfEveryRank) {
  on_worlds([](Communicator& c) {
    const auto window = c.window("exchange", uneven_parts(c.size(), 1000));
    for (int generation = 0; generation < 20; ++generation) {
      c.reclaim(window).wait();
      fill(c, *window, generation);
      dawdle(c, generation);
      int calls = 0;
      c.exchange(window, [&](std::span<const ByteView> views) {
         ++calls;
         ASSERT_EQ(static_cast<int>(views.size()), c.size());
         for (int r = 0; r < c.size(); ++r) {
           ASSERT_EQ(views[r].size(), window->part_bytes(c.rank()));
           expect_marks(views[r], r, window->part_offset(c.rank()), generation, "exchange");
         }
       }).wait();
      EXPECT_EQ(calls, 1);
    }
  });
}

TEST(Communicator, GatherYieldsEveryRanksPart) {
  on_worlds([](Communicator& c) {
    const auto window = c.window("gather", uneven_parts(c.size(), 700));
    for (int generation = 0; generation < 20; ++generation) {
      c.reclaim(window).wait();
      fill(c, *window, generation);
      dawdle(c, generation);
      if (generation % 2) {
        c.gather(window, [&](std::span<const ByteView> views) {
           for (int r = 0; r < c.size(); ++r)
             expect_marks(views[r], r, window->part_offset(r), generation, "gather");
         }).wait();
      } else {
        c.gather(window).wait();
        for (int r = 0; r < c.size(); ++r)
          expect_marks(window->part(r), r, window->part_offset(r), generation, "whole");
      }
    }
  });
}

TEST(Communicator, BroadcastFromEveryRootRightAfterAGather) {
  on_worlds([](Communicator& c) {
    const auto window = c.window("broadcast", uneven_parts(c.size(), 900));
    for (int generation = 0; generation < 12; ++generation) {
      const int root = generation % c.size();
      c.reclaim(window).wait();
      fill(c, *window, generation);
      // The broadcast writes over my part, which slow peers may still gather from.
      const Work gather = c.gather(window, [&](std::span<const ByteView> views) {
        dawdle(c, generation);
        for (int r = 0; r < c.size(); ++r) {
          expect_marks(views[r], r, window->part_offset(r), generation, "gather");
          if (r != c.rank()) std::ranges::copy(views[r], window->part(r).begin());
        }
      });
      c.broadcast(window, root).wait();
      EXPECT_TRUE(gather.done());
      for (int r = 0; r < c.size(); ++r)
        expect_marks(window->part(r), r, window->part_offset(r), generation, "broadcast");
    }
  });
}

TEST(Communicator, AllReduceIsExactOverManyGenerations) {
  on_worlds([](Communicator& c) {
    const auto window = c.window("sum", uneven_parts(c.size(), 4000));
    float* mine = reinterpret_cast<float*>(window->mine().data());
    const size_t count = window->bytes() / sizeof(float);
    for (int generation = 0; generation < 50; ++generation) {
      c.reclaim(window).wait();
      for (size_t i = 0; i < count; ++i)
        mine[i] = float(int(i % 100) + generation * (c.rank() + 1));
      dawdle(c, generation);
      const Work work = all_reduce_floats(c, window);
      work.wait();
      const auto shown = [&](int r) { return window->part_bytes(r); };
      expect_traffic(
          c, work, [&](int r) { return shown(r) + shown(c.rank()); },
          on_other_hosts(c, shown) + (c.topology().hosts - 1) * shown(c.rank()));
      const int ranks = c.size();
      for (size_t i = 0; i < count; ++i)
        ASSERT_EQ(mine[i], float(int(i % 100) * ranks + generation * ranks * (ranks + 1) / 2));
    }
  });
}

// Sums in place again and again without reclaim: allowed, because only the operations write.
TEST(Communicator, AllReduceRepeatsWithoutReclaim) {
  on_worlds([](Communicator& c) {
    const auto window = c.window("again", even_parts(999, sizeof(float), c.size()));
    float* mine = reinterpret_cast<float*>(window->mine().data());
    for (size_t i = 0; i < 999; ++i) mine[i] = 1;
    std::vector<Work> works;
    for (int i = 0; i < 6; ++i) works.push_back(all_reduce_floats(c, window));
    works.back().wait();
    for (size_t i = 0; i < 999; ++i) ASSERT_EQ(mine[i], std::pow(c.size(), 6));
  });
}

TEST(Communicator, AllReduceHasTheBitsOfTheTree) {
  on_worlds([](Communicator& c) {
    constexpr size_t kCount = 5001;
    const auto window = c.window("bits", even_parts(kCount, sizeof(float), c.size(), 64));
    float* mine = reinterpret_cast<float*>(window->mine().data());
    std::ranges::copy(wild_floats(kCount, c.rank()), mine);
    all_reduce_floats(c, window).wait();
    std::vector<std::vector<float>> all;
    for (int r = 0; r < c.size(); ++r) all.push_back(wild_floats(kCount, r));
    for (size_t i = 0; i < kCount; ++i) {
      std::vector<float> column;
      for (const auto& values : all) column.push_back(values[i]);
      const float expected = scalar_tree(column, 0, column.size());
      ASSERT_EQ(std::memcmp(&mine[i], &expected, sizeof expected), 0) << "element " << i;
    }
  });
}

TEST(Communicator, ManyWindowsAreUnderWayAtOnce) {
  on_worlds([](Communicator& c) {
    std::vector<WindowPtr> windows;
    for (int w = 0; w < 6; ++w)
      windows.push_back(c.window(fmt::format("bucket {}", w), uneven_parts(c.size(), 400 * w)));
    for (int generation = 0; generation < 10; ++generation) {
      std::vector<Work> works;
      for (auto& window : windows) {
        c.reclaim(window).wait();
        float* mine = reinterpret_cast<float*>(window->mine().data());
        std::fill_n(mine, window->bytes() / sizeof(float), float(generation + c.rank()));
        works.push_back(all_reduce_floats(c, window));
        dawdle(c, generation);
      }
      const float expected = c.size() * generation + c.size() * (c.size() - 1) / 2;
      for (size_t w = windows.size(); w-- > 0;) {
        works[w].wait();
        const float* sums = reinterpret_cast<const float*>(windows[w]->mine().data());
        for (size_t i = 0; i < windows[w]->bytes() / sizeof(float); ++i)
          ASSERT_EQ(sums[i], expected);
        const Work::Timing t = works[w].timing();
        EXPECT_LE(t.started, t.arrived);
        EXPECT_LE(t.arrived, t.finished);
      }
    }
  });
}

TEST(Communicator, AllGatherBytesOfAnySize) {
  on_worlds([](Communicator& c) {
    for (size_t unit : {size_t{0}, size_t{3}, size_t{20000}}) {
      auto size_of = [unit](int rank) { return unit * (rank + 1) * (rank % 3); };
      std::vector<std::byte> mine(size_of(c.rank()));
      for (size_t i = 0; i < mine.size(); ++i) mine[i] = mark(c.rank(), i, 0);
      const auto all = c.all_gather_bytes(mine);
      ASSERT_EQ(static_cast<int>(all.size()), c.size());
      for (int r = 0; r < c.size(); ++r) {
        ASSERT_EQ(all[r].size(), size_of(r));
        expect_marks(all[r], r, 0, 0, "bytes");
      }
    }
  });
}

TEST(Communicator, WindowsOfDifferentSizesAreRefused) {
  on_worlds([](Communicator& c) {
    if (c.size() == 1) return;
    const std::vector<size_t> parts(c.size(), c.rank() == 0 ? 64 : 128);
    try {
      c.window("crooked", parts);
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::internal);
      EXPECT_NE(std::string(error.what()).find("'crooked' has other part sizes on rank"),
                std::string::npos);
    }
  });
}

TEST(Communicator, BenchCommFindsNothingWrong) {
  on_worlds([](Communicator& c) {
    for (bool out_of_place : {false, true}) {
      const BenchCommOptions options{.begin_bytes = 1000,
                                     .end_bytes = 70000,
                                     .factor = 8,
                                     .iterations = 2,
                                     .warmup = 1,
                                     .mpi_out_of_place = out_of_place};
      const auto rows = bench_comm(c, options);
      ASSERT_EQ(rows.size(), 12u);
      for (const auto& row : rows) {
        EXPECT_EQ(row.ours.wrong, 0) << bench_comm_line(row);
        EXPECT_EQ(row.mpi.has_value(), c.backend() == "mpi");
        if (row.mpi) {
          EXPECT_EQ(row.mpi->wrong, 0) << bench_comm_line(row);
        }
        EXPECT_GE(row.ours.max_us, row.ours.median_us);
      }
      const double n = c.size();
      EXPECT_DOUBLE_EQ(rows[0].ours.busbw, rows[0].ours.algbw * 2 * (n - 1) / n);
    }
  });
}

}  // namespace
}  // namespace lockstep
