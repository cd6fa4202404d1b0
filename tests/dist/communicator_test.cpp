// Every operation of a Communicator, in every kind of world.
#include "dist/communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "dist/bench_comm.h"
#include "tests/core/expect_error.h"
#include "tests/dist/worlds.h"

namespace lockstep {
namespace {

// Part sizes that are uneven and include an empty part as soon as there are three ranks.
std::vector<size_t> uneven_parts(int ranks, size_t unit) {
  std::vector<size_t> parts;
  for (int p = 0; p < ranks; ++p) parts.push_back(unit * ((p * 2 + 1) % 5 % 4) + (p == 1 ? 4 : 0));
  return parts;
}

// A byte that tells who wrote it where and when.
std::byte mark(int rank, size_t offset, int generation) {
  return static_cast<std::byte>(rank * 101 + offset * 7 + generation * 31);
}

void fill(Communicator& c, Window& window, int generation) {
  for (size_t i = 0; i < window.bytes(); ++i) window.mine()[i] = mark(c.rank(), i, generation);
}

void expect_marks(ByteView bytes, int rank, size_t offset, int generation, const char* what) {
  for (size_t i = 0; i < bytes.size(); ++i)
    ASSERT_EQ(bytes[i], mark(rank, offset + i, generation))
        << what << ": byte " << i << " of rank " << rank << ", generation " << generation;
}

// Each rank r saw shown(r) bytes of mine, and so many crossed to other hosts.
void expect_traffic(Communicator& c, const Work& work, const std::function<size_t(int)>& shown,
                    size_t to_hosts) {
  size_t to_ranks = 0;
  for (int r = 0; r < c.size(); ++r)
    if (r != c.rank()) to_ranks += shown(r);
  EXPECT_EQ(work.traffic().to_ranks, to_ranks);
  EXPECT_EQ(work.traffic().to_hosts, to_hosts);
}

// The sum of bytes(r) over the ranks of other hosts.
size_t on_other_hosts(Communicator& c, const std::function<size_t(int)>& bytes) {
  size_t sum = 0;
  for (int r = 0; r < c.size(); ++r)
    if (!c.topology().same_host(r)) sum += bytes(r);
  return sum;
}

// Of very different magnitudes, so that every order of adding them has bits of its own.
std::vector<float> wild_floats(size_t count, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random) * std::exp(5 * normal(random));
  return values;
}

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

// Used bytes of part p on a rank: anything from none to all of it.
size_t used_bytes(int rank, int part, size_t bytes) {
  return bytes * ((rank * 3 + part) % 5) / 4;
}

TEST(Communicator, ExchangeOfUsedBytesOnly) {
  on_worlds([](Communicator& c) {
    const auto window = c.window("used", uneven_parts(c.size(), 1003));
    std::vector<size_t> used;
    for (int p = 0; p < c.size(); ++p)
      used.push_back(used_bytes(c.rank(), p, window->part_bytes(p)));
    const int me = c.rank();
    for (int generation = 0; generation < 10; ++generation) {
      c.reclaim(window).wait();
      fill(c, *window, generation);
      dawdle(c, generation);
      const Work work = c.exchange(
          window,
          [&](std::span<const ByteView> views) {
            for (int r = 0; r < c.size(); ++r) {
              const size_t bytes = window->part_bytes(me);
              ASSERT_EQ(views[r].size(), bytes);
              expect_marks(views[r].first(used_bytes(r, me, bytes)), r, window->part_offset(me),
                           generation, "used");
            }
          },
          used);
      work.wait();
      const auto shown = [&](int r) { return used[r]; };
      expect_traffic(c, work, shown, on_other_hosts(c, shown));
    }
  });
}

TEST(Communicator, GatherOfUsedBytesOnly) {
  for (Layout layout : {Layout::whole, Layout::own_part}) {
    on_worlds([layout](Communicator& c) {
      const auto window = c.window("used", uneven_parts(c.size(), 1003), layout);
      for (int generation = 0; generation < 10; ++generation) {
        auto used = [&](int r) { return used_bytes(r, generation, window->part_bytes(r)); };
        c.reclaim(window).wait();
        const auto mine = window->part(c.rank());
        for (size_t i = 0; i < mine.size(); ++i) mine[i] = mark(c.rank(), i, generation);
        dawdle(c, generation);
        const Work work = c.gather(
            window,
            [&](std::span<const ByteView> views) {
              for (int r = 0; r < c.size(); ++r) {
                ASSERT_EQ(views[r].size(), window->part_bytes(r));
                expect_marks(views[r].first(used(r)), r, 0, generation, "used");
              }
            },
            used(c.rank()));
        work.wait();
        expect_traffic(
            c, work, [&](int) { return used(c.rank()); },
            (c.topology().hosts - 1) * used(c.rank()));
      }
    });
  }
}

// As a device's kernels write them, whose host knows nothing of it.
TEST(Communicator, PartsMayTellHowMuchOfThemIsUsed) {
  on_worlds([](Communicator& c) {
    const size_t room = 1000, head = sizeof(uint64_t);
    const auto window = c.window("told", std::vector<size_t>(c.size(), room));
    const int me = c.rank();
    const auto used = [&](int rank, int part) {
      return head + used_bytes(rank, part, room - head);
    };
    // What a rank sent of a part: the number, then its marks.
    const auto expect_told = [&](ByteView view, int rank, int part, int generation) {
      uint64_t told = 0;
      std::memcpy(&told, view.data(), head);
      ASSERT_EQ(told, used(rank, part));
      expect_marks(view.subspan(head, told - head), rank, window->part_offset(part) + head,
                   generation, "told");
    };
    for (int generation = 0; generation < 10; ++generation) {
      c.reclaim(window).wait();
      fill(c, *window, generation);
      size_t sum = 0;
      for (int p = 0; p < c.size(); ++p) {
        const uint64_t told = used(me, p);
        std::memcpy(window->part(p).data(), &told, head);
        sum += told;
      }
      dawdle(c, generation);
      const Work exchange = c.exchange(
          window,
          [&](std::span<const ByteView> views) {
            for (int r = 0; r < c.size(); ++r) expect_told(views[r], r, me, generation);
          },
          std::vector<size_t>(c.size(), told_by_part));
      exchange.wait();
      EXPECT_EQ(exchange.traffic().used, sum);
      c.gather(
           window,
           [&](std::span<const ByteView> views) {
             for (int r = 0; r < c.size(); ++r) expect_told(views[r], r, r, generation);
           },
           told_by_part)
          .wait();
    }
    if (on_devices()) return;  // there it ends the communicator
    c.reclaim(window).wait();
    const uint64_t nonsense = room + 1;
    std::memcpy(window->part(me).data(), &nonsense, head);
    EXPECT_ERROR(
        c.gather(window, {}, told_by_part), Exit::internal,
        fmt::format("[window] 'told': part {} of 1000 bytes tells that 1001 are used", me));
    c.barrier();
  });
}

TEST(Communicator, AWindowMayHoldNothingButMyPart) {
  on_worlds([](Communicator& c) {
    const auto parts = uneven_parts(c.size(), 1500);
    const auto window = c.window("shard", parts, Layout::own_part);
    ASSERT_EQ(window->mine().size(), parts[c.rank()]);
    ASSERT_EQ(window->part(c.rank()).data(), window->mine().data());
    std::vector<std::byte> whole(window->bytes());
    for (int generation = 0; generation < 10; ++generation) {
      c.reclaim(window).wait();
      for (size_t i = 0; i < parts[c.rank()]; ++i)
        window->mine()[i] = mark(c.rank(), i, generation);
      c.gather(window, [&](std::span<const ByteView> views) {
         for (int r = 0; r < c.size(); ++r)
           std::ranges::copy(views[r], whole.begin() + window->part_offset(r));
       }).wait();
      for (int r = 0; r < c.size(); ++r)
        expect_marks(ByteView(whole).subspan(window->part_offset(r), parts[r]), r, 0, generation,
                     "shard");
    }
  });
}

// Parts that peers hand on arrive in memory that other windows use next, and at the same time.
TEST(Communicator, GathersOfManyWindowsOfMyPartAtOnce) {
  on_worlds([](Communicator& c) {
    std::vector<WindowPtr> windows;
    for (int w = 0; w < 4; ++w)
      windows.push_back(
          c.window(fmt::format("shard {}", w), uneven_parts(c.size(), 300 * w), Layout::own_part));
    for (int generation = 0; generation < 15; ++generation) {
      std::vector<Work> works;
      for (const WindowPtr& window : windows) {
        c.reclaim(window).wait();
        for (size_t i = 0; i < window->mine().size(); ++i)
          window->mine()[i] = mark(c.rank(), i, generation);
        works.push_back(c.gather(window, [&c, generation](std::span<const ByteView> views) {
          dawdle(c, generation);
          for (int r = 0; r < c.size(); ++r) expect_marks(views[r], r, 0, generation, "shard");
        }));
        dawdle(c, generation);
      }
      for (const Work& work : works) work.wait();
    }
  });
}

TEST(Communicator, WhatAWindowOfMyPartCannotDoIsRefused) {
  on_worlds([](Communicator& c) {
    const auto shard = c.window("shard", even_parts(100, 4, c.size()), Layout::own_part);
    const auto whole = c.window("whole", even_parts(100, 4, c.size()));
    const auto reader = [](std::span<const ByteView>) {};
    const int other = c.rank() + 1;
    EXPECT_ERROR(
        c.exchange(shard, reader), Exit::internal,
        "[window] 'shard' holds nothing but each rank's own part: only gather works on it");
    EXPECT_ERROR(c.broadcast(shard, 0), Exit::internal, "only gather works on it");
    EXPECT_ERROR(all_reduce_floats(c, shard), Exit::internal, "only gather works on it");
    EXPECT_ERROR(c.gather(shard), Exit::internal,
                 "[gather] 'shard' needs a reader: its whole has no place in the window");
    EXPECT_ERROR(shard->part(other), Exit::internal,
                 fmt::format("[window] 'shard' holds part {} only on rank {}; rank {} asked for it",
                             other, other, c.rank()));
    EXPECT_ERROR(c.gather(whole, reader, 401), Exit::internal, "'whole': 401 bytes used of part");
    EXPECT_ERROR(c.exchange(whole, reader, {1, 2, 3, 4, 5, 6}), Exit::internal,
                 "[exchange] 'whole': used bytes of 6 parts for");
    c.barrier();
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

// In hosts of 2^k ranks in a row, that is; in others, all contributions travel. The bits are those
// of the tree over ranks all the same.
TEST(Communicator, SumsWithinHostsHaveTheBitsOfTheTreeAndCrossOnce) {
  on_worlds(
      [](Communicator& c) {
        const Topology& t = c.topology();
        const auto window = c.window("folded", even_parts(5001, sizeof(float), c.size(), 64));
        window->fold_with(sum_floats);
        const auto block = static_cast<unsigned>(std::ranges::count(t.host_of, 0));
        const bool folds = std::has_single_bit(block);
        float* mine = reinterpret_cast<float*>(window->mine().data());
        for (int generation = 0; generation < 10; ++generation) {
          c.reclaim(window).wait();
          std::vector<std::vector<float>> all;
          for (int r = 0; r < c.size(); ++r) all.push_back(wild_floats(5001, r + 10 * generation));
          std::ranges::copy(all[c.rank()], mine);
          dawdle(c, generation);
          const size_t begin = window->part_offset(c.rank()) / sizeof(float);
          const size_t count = window->part_bytes(c.rank()) / sizeof(float);
          const bool scatter = generation % 2;
          const Work work =
              scatter ? reduce_scatter_floats(c, window) : all_reduce_floats(c, window);
          work.wait();
          for (size_t i = scatter ? begin : 0; i < (scatter ? begin + count : 5001); ++i) {
            std::vector<float> column;
            for (const auto& values : all) column.push_back(values[i]);
            const float expected = scalar_tree(column, 0, column.size());
            ASSERT_EQ(std::memcmp(&mine[i], &expected, sizeof expected), 0) << "element " << i;
          }
          // Of the parts owned elsewhere, this rank sent those that fall to it; between them, all
          // ranks of the host sent each once.
          const auto part = [&](int r) { return window->part_bytes(r); };
          size_t scattered = 0;
          for (int r = 0; r < c.size(); ++r)
            if (!t.same_host(r) && (!folds || r % t.local_size == t.local_rank))
              scattered += part(r);
          EXPECT_EQ(work.traffic().to_hosts,
                    scattered + (scatter ? 0 : (t.hosts - 1) * part(c.rank())));
        }
      },
      {.ranks = {1, 2, 3, 4, 5, 7, 8}, .ranks_per_host = {0, 1, 2, 3, 4}});
}

TEST(Communicator, WhatIsPreparedIsNotTakenLater) {
  on_worlds([](Communicator& c) {
    const Topology& t = c.topology();
    c.barrier();  // it has memory of its own
    const size_t before = c.arrival_bytes();
    std::vector<WindowPtr> windows;
    for (int w = 0; w < 3; ++w)
      windows.push_back(
          c.window(fmt::format("prepared {}", w), uneven_parts(c.size(), 1234), Layout::own_part));
    size_t handed_on = 0;  // of one window
    for (int r = 0; r < c.size(); ++r)
      if (!t.same_host(r) && r % t.local_size == t.local_rank)
        handed_on += windows[0]->part_bytes(r);
    for (int pair : {0, 1}) c.prepare_to_gather(std::span(windows).subspan(pair, 2));
    EXPECT_EQ(c.arrival_bytes() - before, 2 * handed_on);
    for (int generation = 0; generation < 5; ++generation)
      for (int pair : {0, 1}) {
        const std::vector<Work> works = {c.gather(windows[pair], [](auto) {}),
                                         c.gather(windows[pair + 1], [](auto) {})};
        dawdle(c, generation);
        for (const Work& work : works) work.wait();
        c.barrier();
      }
    EXPECT_EQ(c.arrival_bytes() - before, 2 * handed_on);
  });
}

// What is used, the same on all ranks; what lies behind it is left alone.
TEST(Communicator, UsedBytesAreFoldedAndNoMore) {
  on_worlds(
      [](Communicator& c) {
        const Topology& t = c.topology();
        const auto window = c.window("partly folded", std::vector<size_t>(c.size(), 4004));
        window->fold_with(sum_floats);
        for (int generation = 0; generation < 10; ++generation) {
          c.reclaim(window).wait();
          std::vector<size_t> used;
          for (int p = 0; p < c.size(); ++p) used.push_back(sizeof(float) * (p * 37 % 100));
          const size_t count = used[c.rank()] / sizeof(float);
          std::vector<std::vector<float>> all;  // for my part
          for (int r = 0; r < c.size(); ++r) all.push_back(wild_floats(100, r + 10 * generation));
          for (int p = 0; p < c.size(); ++p)
            std::memcpy(window->part(p).data(), all[c.rank()].data(), used[p]);
          dawdle(c, generation);
          const auto read = [&](std::span<const ByteView> views) {
            EXPECT_EQ(std::ssize(views), t.hosts_are_blocks() ? t.hosts : t.size);
            std::vector<std::vector<float>> values;
            for (ByteView view : views) {
              const float* floats = reinterpret_cast<const float*>(view.data());
              values.emplace_back(floats, floats + count);
            }
            for (size_t i = 0; i < count; ++i) {
              std::vector<float> given, column;
              for (const auto& theirs : values) given.push_back(theirs[i]);
              for (const auto& theirs : all) column.push_back(theirs[i]);
              ASSERT_EQ(std::bit_cast<int32_t>(scalar_tree(given, 0, given.size())),
                        std::bit_cast<int32_t>(scalar_tree(column, 0, column.size())))
                  << "element " << i;
            }
          };
          const Work work = c.exchange(window, read, used);
          work.wait();
          size_t scattered = 0;
          for (int r = 0; r < c.size(); ++r)
            if (!t.same_host(r) && (!t.hosts_are_blocks() || r % t.local_size == t.local_rank))
              scattered += used[r];
          expect_traffic(
              c, work, [&](int r) { return used[r]; }, scattered);
        }
      },
      {.ranks = {3, 4, 5, 8}, .ranks_per_host = {0, 1, 2, 3, 4}});
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
