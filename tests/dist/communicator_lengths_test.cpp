// How many bytes of a part travel: as many as the caller says are used, or as many as the part
// itself tells, which is what a device's kernels do. Read next: communicator_own_part_test.cpp.
#include <cstring>

#include "tests/core/expect_error.h"
#include "tests/dist/communicator_data.h"
#include "tests/dist/worlds.h"

namespace lockstep {
namespace {

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

}  // namespace
}  // namespace lockstep
