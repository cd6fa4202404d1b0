// Contributions that are summed within a host before they travel: the bits of the tree, and who
// sends how much. Read next: data_parallel_test.cpp.
#include <algorithm>
#include <bit>
#include <cstring>

#include "tests/dist/communicator_data.h"
#include "tests/dist/worlds.h"

namespace lockstep {
namespace {

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

}  // namespace
}  // namespace lockstep
