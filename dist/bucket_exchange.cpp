// Which kind a bucket gets, and what both do. Read next: direct_exchange.cpp.
#include "dist/bucket_exchange.h"

#include "core/backend.h"
#include "core/parallel.h"

namespace lockstep {

void BucketExchange::measure(std::vector<Tensor>& shard, std::vector<Tensor>& norms) {
  set_num_threads(1);  // of this thread: the others belong to backward
  for (size_t i = 0; i < shard.size(); ++i) backend().cell_norms(shard[i], norms[i]);
}

void BucketExchange::add_work(const Work& work, GradientReport& report,
                              std::vector<CommSpan>& spans) {
  spans.push_back({work.timing().arrived, work.timing().finished});
  report.wire_bytes += static_cast<int64_t>(work.traffic().to_ranks);
  report.host_bytes += static_cast<int64_t>(work.traffic().to_hosts);
}

std::unique_ptr<BucketExchange> make_bucket_exchange(const ExchangeRules& rules,
                                                     Communicator& communicator,
                                                     const std::vector<NamedTensor>& parameters,
                                                     const Bucket& bucket) {
  return (rules.in_place() ? make_direct_exchange : make_staged_exchange)(rules, communicator,
                                                                          parameters, bucket);
}

}  // namespace lockstep
