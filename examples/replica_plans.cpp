// What a replica must hold and send, by the formulas of dist/memory.h for its model and config.
// Read next: ../dist/memory.cpp.
#include "examples/replica.h"

namespace lockstep {

namespace {

DistConfig with_codec(DistConfig dist, const std::string& codec) {
  dist.compression.codec = codec;
  return dist;
}

}  // namespace

// A tied embedding's gradient begins with the head's.
MemoryModel Replica::memory_model() const {
  MemoryModel model{parameters_, unit_of_, {}, config_.train.device == "cuda"};
  for (const Module* child : model_.children())
    for (const NamedTensor& borrowed : child->borrowed())
      for (size_t i = 0; i < parameters_.size(); ++i)
        if (parameters_[i].name == borrowed.name) model.early.push_back(i);
  return model;
}

MemoryBytes Replica::memory_plan(int zero_stage) const {
  DistConfig dist = config_.dist;
  dist.zero_stage = zero_stage;
  return lockstep::memory_plan(
      dist, memory_model(), communicator_.topology(), sum_order(), accumulation_,
      state_bytes_per_element(config_.optim, config_.train.dtype()), sent_momentum());
}

WireBytes Replica::wire_plan() const {
  return lockstep::wire_plan(config_.dist, memory_model(), communicator_.size(), sum_order(),
                             accumulation_);
}

double Replica::compressed_by(const std::string& codec) const {
  return lockstep::wire_plan(with_codec(config_.dist, codec), memory_model(), communicator_.size(),
                             sum_order(), accumulation_)
      .compressed;
}

std::vector<double> Replica::bucket_link_bytes(const std::string& codec) const {
  return lockstep::bucket_link_bytes(with_codec(config_.dist, codec), memory_model(),
                                     communicator_.topology(), sum_order(), accumulation_);
}

}  // namespace lockstep
