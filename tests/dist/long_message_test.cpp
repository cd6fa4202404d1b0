// Messages of more than 2 GiB, which MPI cannot count in an int. A program of its own: it takes 8
// GB and half of that in /dev/shm.
#include <gtest/gtest.h>

#include "dist/communicator.h"
#include "tests/dist/worlds.h"

namespace lockstep {
namespace {

constexpr size_t page = 4096;
constexpr size_t long_part = (size_t{1} << 31) + 5 * page + 12;

std::byte mark(size_t page_number, int generation) {
  return static_cast<std::byte>(page_number * 37 + page_number / 251 + generation);
}

// The first byte of every page, and the last of all.
template <class Visit>
void at_every_page(Visit visit) {
  for (size_t at = 0; at < long_part; at += page) visit(at, at / page);
  visit(long_part - 1, long_part / page + 1);
}

void fill(std::span<std::byte> part, int generation) {
  at_every_page([&](size_t at, size_t number) { part[at] = mark(number, generation); });
}

void expect_filled(ByteView part, int generation) {
  ASSERT_EQ(part.size(), long_part);
  at_every_page(
      [&](size_t at, size_t number) { ASSERT_EQ(part[at], mark(number, generation)) << at; });
}

// Rank 0 has nothing of its own; so what it shows is rank 1's part, and what it gathers, too.
TEST(Communicator, CarriesMessagesBeyondTwoGigabytes) {
  on_worlds(
      [](Communicator& c) {
        const size_t parts[] = {0, long_part};
        const WindowPtr window = c.window("long", parts);
        if (c.rank() == 0) fill(window->part(1), 1);
        c.exchange(window, [&](std::span<const ByteView> views) {
           if (c.rank() == 1) expect_filled(views[0], 1);
         }).wait();
        c.reclaim(window).wait();
        if (c.rank() == 1) fill(window->part(1), 2);
        c.gather(window).wait();
        expect_filled(window->part(1), 2);
      },
      {.ranks = {2}, .ranks_per_host = {1}});
}

}  // namespace
}  // namespace lockstep
