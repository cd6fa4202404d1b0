#include "tests/dist/worlds.h"

#include <gtest/gtest.h>

#include <cstdlib>

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

void on_worlds(const std::function<void(Communicator&)>& body, int most) {
  if (mpi_world) {
    body(*mpi_world);
    return mpi_world->barrier();
  }
  for (int ranks = 1; ranks <= most; ++ranks) {
    for (int ranks_per_host : {0, 1, 2}) {
      SCOPED_TRACE(fmt::format("{} threads, {} per host", ranks, ranks_per_host));
      run_local(ranks, {.timeout_s = 20, .ranks_per_host = ranks_per_host}, body);
    }
  }
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
