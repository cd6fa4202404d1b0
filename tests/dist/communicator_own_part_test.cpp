// Windows that hold nothing but each rank's own part: what works on them, what does not, and the
// memory in which the others' parts are handed on. Read next: communicator_folding_test.cpp.
#include <algorithm>

#include "tests/core/expect_error.h"
#include "tests/dist/communicator_data.h"
#include "tests/dist/worlds.h"

namespace lockstep {
namespace {

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

}  // namespace
}  // namespace lockstep
