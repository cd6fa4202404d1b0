// What happens to the other ranks when one fails, stays away, or asks for nonsense.
#include "dist/local.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <thread>

#include "dist/config.h"

namespace lockstep {
namespace {

Error error_of(int ranks, const TransportOptions& options,
               const std::function<void(Communicator&)>& body) {
  try {
    run_local(ranks, options, body);
  } catch (const Error& error) {
    return error;
  }
  return Error(Exit::ok, "nothing was thrown");
}

void expect_contains(const Error& error, const std::string& text) {
  EXPECT_NE(std::string(error.what()).find(text), std::string::npos)
      << "'" << error.what() << "' lacks '" << text << "'";
}

// Lets the rank go on that stays away until others have waited in vain.
struct GiveUp {
  explicit GiveUp(std::atomic<bool>& flag) : flag(flag) {}
  ~GiveUp() {
    flag = true;
    flag.notify_all();
  }
  std::atomic<bool>& flag;
};

TEST(Local, AnExceptionInOneRankEndsAll) {
  for (int ranks_per_host : {0, 1}) {
    const Error error =
        error_of(4, {.timeout_s = 20, .ranks_per_host = ranks_per_host}, [](auto& c) {
          const auto window = c.window("w", even_parts(100, 4, c.size()));
          c.barrier();
          if (c.rank() == 2) fail(Exit::data, "[data] shard 7 is truncated");
          all_reduce_floats(c, window).wait();
          c.barrier();
        });
    EXPECT_EQ(error.code(), Exit::data);
    EXPECT_STREQ(error.what(), "[rank 2] [data] shard 7 is truncated");
  }
}

TEST(Local, MemoryThatTheSystemRefusesIsAMatterOfSettings) {
  const Error error = error_of(2, {.timeout_s = 20}, [](auto& c) {
    if (c.rank() == 1) throw std::bad_alloc();
    c.barrier();
  });
  EXPECT_EQ(error.code(), Exit::config);
  EXPECT_STREQ(error.what(),
               "[rank 1] [memory] the system refused memory; something smaller is right");
}

TEST(Local, AnExceptionWhileOthersCreateAWindowEndsAll) {
  const Error error = error_of(3, {.timeout_s = 20}, [](auto& c) {
    if (c.rank() == 0) throw std::runtime_error("boom");
    c.window("never", std::vector<size_t>(c.size(), 64));
  });
  EXPECT_EQ(error.code(), Exit::internal);
  EXPECT_STREQ(error.what(), "[rank 0] boom");
}

TEST(Local, AReaderThatThrowsFailsItsOperationAndAll) {
  const Error error = error_of(2, {.timeout_s = 20}, [](auto& c) {
    const auto window = c.window("w", even_parts(100, 4, c.size()));
    c.exchange(window, [&](std::span<const ByteView>) {
       if (c.rank() == 1) fail(Exit::data, "[reducer] gradient of 'wte' is not finite");
     }).wait();
    c.barrier();
  });
  EXPECT_EQ(error.code(), Exit::data);
  expect_contains(error, "[reducer] gradient of 'wte' is not finite");
}

TEST(Local, AWaitIsBoundedAndNamesWhoIsMissingWhere) {
  for (int ranks_per_host : {0, 1}) {
    std::atomic<bool> given_up = false;
    const Error error =
        error_of(3, {.timeout_s = 0.2, .ranks_per_host = ranks_per_host}, [&](auto& c) {
          const auto window = c.window("bucket 3", even_parts(100, 4, c.size()));
          if (c.rank() == 1) given_up.wait(false);
          const GiveUp give_up(given_up);
          all_reduce_floats(c, window).wait();
        });
    EXPECT_EQ(error.code(), Exit::restart);
    expect_contains(error, " waited 0.2 s for rank 1 on host ");
    expect_contains(error, "(all_reduce (exchange) 1 of window 'bucket 3', operation ");
    expect_contains(error, "slower than dist.timeout_s = 0.2 allows");
  }
}

TEST(Local, EveryPhaseHasItsLimitAndItsWords) {
  const struct {
    Moment moment;
    const char* words;
  } kCases[] = {
      {{Phase::start, 0}, " at start (gather 1 of window 'w', "},
      {{Phase::step, 0}, " before the first step (gather 1 of window 'w', "},
      {{Phase::step, 7}, " in step 7 (gather 1 of window 'w', "},
      {{Phase::checkpoint, 8}, " in the checkpoint of step 8 (gather 1 of window 'w', "},
      {{Phase::evaluation, 9}, " in the evaluation after step 9 (gather 1 of window 'w', "},
  };
  for (const auto& [moment, words] : kCases) {
    TransportOptions options{20, 20, 20, 20};
    double& limit = moment.phase == Phase::start        ? options.start_timeout_s
                    : moment.phase == Phase::step       ? options.timeout_s
                    : moment.phase == Phase::checkpoint ? options.checkpoint_timeout_s
                                                        : options.eval_timeout_s;
    limit = 0.1;
    std::atomic<bool> given_up = false;
    const Error error = error_of(2, options, [&](auto& c) {
      c.enter({Phase::start, 0});
      if (moment.phase == Phase::start) c.enter({Phase::step, 0});
      const auto window = c.window("w", even_parts(100, 4, c.size()));
      const PhaseScope scope(c, moment);
      if (c.rank() == 1) given_up.wait(false);
      const GiveUp give_up(given_up);
      c.gather(window).wait();
    });
    EXPECT_EQ(error.code(), Exit::restart);
    expect_contains(error, words);
    expect_contains(error, fmt::format("or slower than {} = 0.1 allows", moment.limit_key()));
  }
}

TEST(Local, AScopeEndsWithWhatWasBefore) {
  run_local(1, {}, [](auto& c) {
    c.enter({Phase::step, 3});
    { const PhaseScope scope(c, {Phase::checkpoint, 3}); }
    const Moment before = c.enter({});
    EXPECT_EQ(before.phase, Phase::step);
    EXPECT_EQ(before.step, 3);
  });
}

// The thread cannot be ended, so the process is, with the first failure's message and code.
TEST(LocalDeathTest, ARankThatHangsInItsOwnComputationEndsTheProcess) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "a process that ends with threads in it is a leak to the race detector";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  std::atomic<bool> hangs = false;
  EXPECT_EXIT(run_local(2, {.timeout_s = 20},
                        [&](auto& c) {
                          if (c.rank() == 0) hangs.wait(false);
                          if (c.rank() == 0) fail(Exit::data, "[data] shard 7 is truncated");
                          hangs = true;
                          hangs.notify_all();
                          std::this_thread::sleep_for(std::chrono::hours(1));
                        }),
              testing::ExitedWithCode(65),
              "\\[rank 0\\] \\[data\\] shard 7 is truncated\n"
              "\\[local\\] 1 of 2 ranks did not end within 3 s after that");
}

TEST(LocalDeathTest, TheWatchdogEndsAProcessWhoseCommunicationThreadHangs) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run_local(1, {.timeout_s = 0.2},
                        [](auto& c) {
                          c.enter({Phase::step, 1});
                          c.call([] { std::this_thread::sleep_for(std::chrono::hours(1)); });
                        }),
              testing::ExitedWithCode(75),
              "\\[watchdog\\] rank 0 on host .*: its communication thread has not returned for "
              "1.2 s, longer than dist.timeout_s allows");
}

TEST(Local, ReclaimWaitsForSlowReaders) {
  run_local(3, {.timeout_s = 20}, [](auto& c) {
    std::atomic<bool> has_read = false;
    const auto window = c.window("w", std::vector<size_t>(c.size(), 64));
    const Work gather = c.gather(window, [&](std::span<const ByteView> views) {
      if (c.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      for (const ByteView& view : views) EXPECT_EQ(view[0], std::byte{0});
      has_read = true;
    });
    c.reclaim(window).wait();
    EXPECT_TRUE(has_read);
    window->mine()[window->part_offset(c.rank())] = std::byte{1};
    gather.wait();
  });
}

TEST(Local, NeedsARank) {
  const Error error = error_of(0, {}, [](auto&) {});
  EXPECT_EQ(error.code(), Exit::config);
  EXPECT_STREQ(error.what(), "[dist] local_ranks is 0; it must be at least 1");
}

TEST(EvenParts, AreWholeGrainsAndAddUp) {
  for (size_t count : {0, 1, 63, 64, 65, 1000, 4096}) {
    for (int ranks : {1, 2, 3, 4, 7}) {
      const auto parts = even_parts(count, 4, ranks, 64);
      size_t at = 0;
      for (size_t bytes : parts) {
        EXPECT_TRUE(at % 64 == 0 || bytes == 0);
        at += bytes / 4;
      }
      EXPECT_EQ(at, count);
      EXPECT_LE(*std::max_element(parts.begin(), parts.end()),
                *std::min_element(parts.begin(), parts.end()) + 2 * 64 * 4);
    }
  }
}

TEST(DistConfig, NamesEveryFieldOnce) {
  std::vector<std::string> names;
  auto counter = [&](const char* name, auto&, const std::string& help, const auto&...) {
    EXPECT_GT(help.size(), 10u);
    names.push_back(name);
  };
  DistConfig().visit(counter);
  const std::vector<std::string> expected = {
      "backend",        "local_ranks", "zero_stage",      "accumulate",
      "reducer",        "nccl_reduce", "bucket_mb",       "overlap",
      "compression",    "timeout_s",   "start_timeout_s", "checkpoint_timeout_s",
      "eval_timeout_s", "verify_every"};
  EXPECT_EQ(names, expected);
}

}  // namespace
}  // namespace lockstep
