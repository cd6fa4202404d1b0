// One bucket's way from this rank's gradients to the shard, or the whole, of their sum. Two kinds
// do the same sums: Direct, where the gradients' own memory is what the peers read, and Staged,
// where they are encoded for the wire. When to launch is the reducer's matter. Read next:
// direct_exchange.cpp.
#pragma once

#include <memory>
#include <vector>

#include "dist/buckets.h"
#include "dist/codec.h"
#include "dist/data_parallel.h"

namespace lockstep {

// What a bucket's exchange has to be like; the same for all buckets of a run.
struct ExchangeRules {
  bool reduced = false;        // exchange every micro step, not once per step
  bool gather = true;          // everyone gets the whole sum, not only the owner its shard
  bool keep_gradients = true;  // full gradients have memory of their own, not only in flight
  bool error_feedback = true;
  double momentum = 0;       // above 0: ranks send momenta, divided as precondition() says
  int64_t warmup_steps = 0;  // that travel uncompressed
  int64_t min_elements = 0;  // smaller parameters travel uncompressed, as do vectors
  SumOrder order = SumOrder::same_world;
  std::shared_ptr<const Codec> codec;

  bool every_micro_step() const { return reduced || order == SumOrder::any_world; }
  // Nothing but fp32 travels: contributions can be summed on the way.
  bool only_floats() const { return codec == nullptr; }
  // The window is the gradients' memory: nothing to encode, and nothing to keep between exchanges.
  bool in_place() const { return only_floats() && keep_gradients && !every_micro_step(); }
};

class BucketExchange {
 public:
  virtual ~BucketExchange() = default;

  // The most that travels of each part; the window given to use() has at least as much.
  virtual std::vector<size_t> capacity() const = 0;
  // Buckets may share a window, in turn. Each run of my part has its place for norms in `norms`.
  virtual void use(const WindowPtr& window, std::vector<Tensor> norms) = 0;

  virtual void begin_step(const MicroStep& first) = 0;
  // Where the gradient of a member goes, at its first contribution.
  virtual Tensor buffer(size_t member) = 0;
  // A recording's replay wrote it `at`, where it had its buffer when that was recorded. The place
  // is the recording's, and used for something else after the launch.
  virtual void replayed(size_t member, void* at) = 0;
  // The gradients of a micro step are complete: of each one if rules.every_micro_step(), else of
  // the last. Does not wait for other ranks, unless they still read what the window held before.
  virtual void launch(const MicroStep& micro) = 0;
  // Returns when the sum is there.
  virtual void wait() = 0;
  // After that, and on a device when its stream has come so far: adds what was sent and when it was
  // under way.
  virtual void finish(GradientReport& report, std::vector<CommSpan>& spans) = 0;
  virtual void end_step(bool committed) = 0;

  // Between steps; collective, bucket after bucket. The second moments of my runs, one pointer
  // each.
  virtual void precondition(const std::vector<const float*>& moments) = 0;

  // After wait(): with rules.gather the members' gradients, else those of my runs.
  virtual std::vector<Tensor> means() = 0;
  virtual std::vector<NamedTensor> residuals() const = 0;

 protected:
  // On the communication thread, while my shard of the sum is in the cache.
  static void measure(std::vector<Tensor>& shard, std::vector<Tensor>& norms);
  // What an operation that is done sent, and when it was under way.
  static void add_work(const Work& work, GradientReport& report, std::vector<CommSpan>& spans);
};

using MakeBucketExchange = std::unique_ptr<BucketExchange>(
    const ExchangeRules& rules, Communicator& communicator,
    const std::vector<NamedTensor>& parameters, const Bucket& bucket);
// The kind that the rules ask for: direct if they are in_place(), else staged.
MakeBucketExchange make_bucket_exchange;
MakeBucketExchange make_direct_exchange, make_staged_exchange;

}  // namespace lockstep
