// Where parameters live between updates: whole on every rank (zero_stage 0); whole, but each rank
// updates its shard and gathers the others' (1, 2); or as shards only, gathered for as long as they
// are used (3: Rajbhandari et al., "ZeRO", SC 2020). A bucket's parts are the shards. Read next:
// placement.cpp.
#pragma once

#include <memory>
#include <vector>

#include "dist/buckets.h"
#include "dist/data_parallel.h"

namespace lockstep {

class Placement {
 public:
  virtual ~Placement() = default;

  // What this rank updates: by bucket and run of its part, or the parameters in their order.
  virtual const std::vector<NamedTensor>& shards() const = 0;

  // Returns when nobody reads this rank's shards any more: they may be written.
  virtual void begin_update() = 0;
  // They were written. Collective.
  virtual void publish() = 0;

  // The unit's parameters are there between the two. Collective with shards.
  virtual void acquire(size_t unit) = 0;
  virtual void release(size_t unit) = 0;

  // Adds what gathering cost since the last call.
  virtual void report(GradientReport& report) = 0;

  // Whether parameters may travel while something is computed.
  virtual void set_overlap(bool overlap) = 0;
};

enum class Residence { replicated, gathered, sharded };

std::unique_ptr<Placement> make_placement(Residence residence, Communicator& communicator,
                                          const std::vector<NamedTensor>& parameters,
                                          const std::vector<size_t>& unit_of,
                                          const std::vector<Bucket>& buckets,
                                          StepRecorder& recorder, const Initialise& initialise);

// "name[first:end]", and a view of those elements: (1, n) of a matrix, which thereby still decays,
// (n) of a vector. `offset` in elements.
NamedTensor shard_view(const NamedTensor& whole, const CellRun& run,
                       const std::shared_ptr<Storage>& storage, int64_t offset, DType dtype);

}  // namespace lockstep
