// Filling batches, and threads that do it ahead. Read next: prepare.cpp, where shards come from.
#include "data/loader.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/error.h"

namespace lockstep {

Schedule step_schedule(Deal deal, int rank, int world, int64_t micro_steps, int64_t micro_batch) {
  check(rank >= 0 && rank < world && micro_steps > 0 && micro_batch > 0,
        "[loader] rank {} of {}, {} micro-steps of {} samples", rank, world, micro_steps,
        micro_batch);
  return [=](int64_t number) {
    const int64_t step = number / micro_steps, micro = number % micro_steps;
    const int64_t in_step =
        deal == Deal::blocked ? rank * micro_steps + micro : micro * world + rank;
    return (step * world * micro_steps + in_step) * micro_batch;
  };
}

Loader::Loader(const Dataset& data, const Sampler& sampler, Schedule schedule, Options options)
    : data_(data),
      sampler_(sampler),
      schedule_(std::move(schedule)),
      options_(options),
      next_(options.start),
      // The batch in the trainer's hands, one being filled per thread, one ready per thread.
      slots_(1 + 2 * options.workers),
      claimed_(options.start),
      freed_(options.start) {
  check(
      options.micro_batch > 0 && options.seq_len > 0 && options.workers >= 0 && options.start >= 0,
      "[loader] micro_batch {}, seq_len {}, workers {}, start {}", options.micro_batch,
      options.seq_len, options.workers, options.start);
  for (int i = 0; i < options.workers; ++i)
    threads_.emplace_back([this](std::stop_token stop) { work(stop); });
}

const Batch& Loader::next() {
  const auto begin = std::chrono::steady_clock::now();
  Slot& mine = slot(next_);
  if (threads_.empty()) {
    fill(mine.batch, next_);
  } else {
    std::unique_lock lock(mutex_);
    freed_ = next_;  // the batch handed out before this one
    slot_free_.notify_all();
    slot_ready_.wait(lock, [&] { return mine.ready; });
    if (mine.error) std::rethrow_exception(mine.error);
    mine.ready = false;
  }
  waited_seconds_ +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  ++next_;
  return mine.batch;
}

void Loader::work(std::stop_token stop) {
  sigset_t all;  // signals are for the thread that trains
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  const int64_t ring = static_cast<int64_t>(slots_.size());
  std::unique_lock lock(mutex_);
  while (true) {
    slot_free_.wait(lock, stop, [&] { return claimed_ < freed_ + ring; });
    if (stop.stop_requested()) return;
    const int64_t number = claimed_++;
    Slot& mine = slot(number);
    lock.unlock();
    std::exception_ptr error;
    try {
      fill(mine.batch, number);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    mine.error = error;
    mine.ready = true;
    slot_ready_.notify_one();
  }
}

void Loader::fill(Batch& batch, int64_t number) const {
  const int64_t rows = options_.micro_batch, length = options_.seq_len;
  batch.x.resize(rows * length);
  batch.y.resize(rows * length);
  batch.number = number;
  batch.first_sample = schedule_(number);
  batch.targets = 0;
  std::vector<int32_t> tokens(length + 1);
  for (int64_t row = 0; row < rows; ++row) {
    const TokenWindow window = sampler_.window(batch.first_sample + row);
    check(window.length >= 0 && window.length <= length, "[loader] a window of {}, seq_len is {}",
          window.length, length);
    if (window.length > 0) data_.read(window.start, window.length + 1, tokens.data());
    int32_t* x = batch.x.data() + row * length;
    int32_t* y = batch.y.data() + row * length;
    std::fill(std::copy_n(tokens.data(), window.length, x), x + length, 0);
    std::fill(std::copy_n(tokens.data() + 1, window.length, y), y + length, -1);
    batch.targets += window.length;
  }
}

}  // namespace lockstep
