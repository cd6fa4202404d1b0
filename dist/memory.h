// What a rank must hold and send, by formula, before anything is allocated. Asserted against the
// allocator's figures in tests, and printed beside them by `trainer bench step`. Activations are
// not in it: they depend on the model's code. Read next: memory.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"
#include "dist/config.h"
#include "dist/data_parallel.h"

namespace lockstep {

// Bytes per element of the model, before anything is split.
struct ElementBytes {
  double parameter = 4;
  double gradient = 4;
  double optimizer = 8;  // with the fp32 masters of bf16 parameters
};

struct MemoryBytes {
  double parameters = 0, gradients = 0, optimizer = 0, buffers = 0;
  double arrivals = 0;  // where parts from other hosts arrive; on a device, those of all others
  double total() const { return parameters + gradients + optimizer + buffers + arrivals; }
};

// What outlives a step: each stage divides one more term by the ranks (Rajbhandari et al., "ZeRO",
// SC 2020, figure 1, where gradients have 2 bytes).
MemoryBytes model_states(double elements, int ranks, int zero_stage, const ElementBytes& bytes);

// The model as far as memory goes.
struct MemoryModel {
  std::vector<NamedTensor> parameters;
  std::vector<size_t> unit_of;  // as for make_data_parallel
  // Parameters whose gradient begins to arrive when backward begins and is complete when it ends: a
  // tied embedding.
  std::vector<size_t> early;
  bool on_device = false;  // windows are a device's memory; with backend nccl they always are
};

// The peak on the rank with the largest shards: the model's states, and what this implementation
// adds while it works: padding, buckets in flight, gathered units, residuals, momenta, norms; with
// several hosts, or on devices, the memory in which parts arrive. Not what a kernel takes while it
// runs: on a CPU a bf16 product packs factors into up to 40 MB, with the head's long gradient.
MemoryBytes memory_plan(const DistConfig& config, const MemoryModel& model, const Topology& where,
                        SumOrder order, int64_t micro_steps, double optimizer_bytes_per_element,
                        double momentum = 0);

// What that rank sends to others in a step, at most: gradients (with a codec, as long as it is not
// warming up), and parameters, which with stage 3 are gathered for forward and again for backward.
struct WireBytes {
  double gradients = 0, parameters = 0;
  double compressed = 0;  // share of the gradients' elements that the codec encodes
};
WireBytes wire_plan(const DistConfig& config, const MemoryModel& model, int ranks, SumOrder order,
                    int64_t micro_steps);

// Of each bucket's gradients, what they put on the link of the host that sends most, per step; if
// all ranks share a host, what they show to each other there. At most, as above. The merged trace
// of a step (overlap_bound.h) has the same figures as measured.
std::vector<double> bucket_link_bytes(const DistConfig& config, const MemoryModel& model,
                                      const Topology& where, SumOrder order, int64_t micro_steps);

}  // namespace lockstep
