// Starting the worlds, and the main() of those programs. Read next: communicator_test.cpp.
#include "tests/dist/worlds.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "core/parallel.h"
#include "dist/local.h"
#include "dist/mpi.h"

namespace lockstep {

namespace {

Communicator* mpi_world = nullptr;

// Of the other ranks only failures are seen.
class FailurePrinter : public testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.failed())
      fmt::print(stderr, "rank {}: {}:{}: {}\n", rank_,
                 result.file_name() ? result.file_name() : "", result.line_number(),
                 result.message());
  }

 private:
  const int rank_;
};

int run_under_mpi(const TransportOptions& options) {
  int result = 0;
  run_mpi(options, [&](Communicator& c) {
    mpi_world = &c;
    if (c.rank() > 0) {
      auto& listeners = testing::UnitTest::GetInstance()->listeners();
      delete listeners.Release(listeners.default_result_printer());
      listeners.Append(new FailurePrinter(c.rank()));
    }
    result = RUN_ALL_TESTS();
  });
  return result;
}

}  // namespace

RankPlace& rank_place() {
  static RankPlace place;
  return place;
}

void on_worlds(const std::function<void(Communicator&)>& body, const LocalWorlds& worlds) {
  const auto rank = [&body](Communicator& c) {
    set_num_threads(1);
    on_devices() ? rank_place().run(c, body) : body(c);
  };
  if (mpi_world) {
    rank(*mpi_world);
    return mpi_world->barrier();
  }
  for (int ranks : worlds.ranks) {
    for (int ranks_per_host : worlds.ranks_per_host) {
      if (ranks_per_host > 1 && ranks_per_host >= ranks) continue;  // one host
      if (on_devices() && (ranks > rank_place().most_ranks || ranks_per_host % 2)) continue;
      SCOPED_TRACE(fmt::format("{} threads, {} per host", ranks, ranks_per_host));
      run_local(ranks, {.timeout_s = 20, .ranks_per_host = ranks_per_host}, rank);
    }
  }
}

void dawdle(Communicator& c, int generation) {
  std::minstd_rand random(c.rank() * 7919 + generation);
  random.discard(3);
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
}

float scalar_tree(const std::vector<float>& x, size_t begin, size_t end) {
  if (end - begin == 1) return x[begin];
  size_t half = 1;
  while (half * 2 < end - begin) half *= 2;
  return scalar_tree(x, begin, begin + half) + scalar_tree(x, begin + half, end);
}

}  // namespace lockstep

// [--mpi [ranks per pretended host [largest message]]]
int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc < 2) return RUN_ALL_TESTS();
  lockstep::TransportOptions options{.timeout_s = 20};
  if (argc > 2) options.ranks_per_host = std::atoi(argv[2]);
  if (argc > 3) options.largest_message = std::atoi(argv[3]);
  try {
    return lockstep::run_under_mpi(options);
  } catch (const lockstep::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.code());
  }
}
