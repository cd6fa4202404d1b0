// One rank's micro-batches, in order, prepared ahead by threads. What a batch holds depends on its
// number alone, so threads change when it is ready, never what is in it; to resume is to start at a
// number. No tensors: a batch is two plain buffers, which the trainer copies to its device.
// Read next: dataset.h and sampler.h, which it joins.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "data/dataset.h"
#include "data/sampler.h"

namespace lockstep {

struct Batch {
  std::vector<int32_t> x;    // inputs [micro_batch, seq_len]
  std::vector<int32_t> y;    // targets, x one token later; -1 where there is none (padding, x is 0)
  int64_t number = 0;        // of the micro-batch in this rank's order
  int64_t first_sample = 0;  // global index of row 0; row i is first_sample + i
  int64_t targets = 0;       // elements of y that are not -1
};

// The global index of the first sample of this rank's micro-batch `number`.
using Schedule = std::function<int64_t(int64_t number)>;

// How the micro-batches of a step are dealt out. With w ranks and k micro-batches per rank a step
// has w * k: `blocked` gives rank r numbers rk ... rk + k - 1, `interleaved` gives r, r + w, ...
enum class Deal { blocked, interleaved };

// A rank's micro-batch number n is micro-step n % k of step n / k.
Schedule step_schedule(Deal deal, int rank, int world, int64_t micro_steps, int64_t micro_batch);

class Loader {
 public:
  struct Options {
    int64_t micro_batch = 1;
    int64_t seq_len = 1;
    int workers = 1;    // 0: next() reads by itself
    int64_t start = 0;  // number of the first micro-batch
  };

  // `data` and `sampler` must outlive the loader.
  Loader(const Dataset& data, const Sampler& sampler, Schedule schedule, Options options);
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next micro-batch, valid until the next call. Rethrows what a thread met while preparing it,
  // at this call and at every later one.
  const Batch& next();

  // Seconds that next() has waited for threads, or read by itself.
  double waited_seconds() const { return waited_seconds_; }

 private:
  struct Slot {
    Batch batch;
    std::exception_ptr error;
    bool ready = false;
  };

  void fill(Batch& batch, int64_t number) const;
  void work(std::stop_token stop);
  Slot& slot(int64_t number) { return slots_[number % slots_.size()]; }

  const Dataset& data_;
  const Sampler& sampler_;
  Schedule schedule_;
  Options options_;
  double waited_seconds_ = 0;
  int64_t next_;  // number of the batch that next() will return

  // A ring of batches; batch n lives in slot n modulo their number. Guarded by mutex_: `claimed_`
  // (the first number that no thread has taken), `freed_` (every number below it may be
  // overwritten) and each slot's `ready` and `error`. A slot's batch belongs to the thread that
  // claimed it until it is ready, then to next().
  std::vector<Slot> slots_;
  std::mutex mutex_;
  std::condition_variable slot_ready_;
  std::condition_variable_any slot_free_;  // can wait for a stop, too
  int64_t claimed_, freed_;
  std::vector<std::jthread> threads_;  // last: they are stopped and joined first
};

}  // namespace lockstep
