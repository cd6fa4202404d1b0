// The formulas, term by term. Read next: verify.h.
#include "dist/memory.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <string>

#include "dist/stages.h"
#include "dist/wire.h"

namespace lockstep {

namespace {

// A plan's buckets with the sums that the terms need.
class Plan {
 public:
  Plan(const DistConfig& config, const MemoryModel& model, int ranks, SumOrder order,
       double momentum = 0)
      : options_(reducer_options(config, order, momentum)),
        by_nccl_(config.backend == "nccl"),
        nccl_sums_(config.nccl_reduce == "native" && options_.rules.only_floats()),
        model_(model),
        buckets_(plan_buckets(model.parameters, options_.bucket_bytes, ranks,
                              options_.units_apart ? model.unit_of : std::vector<size_t>{})),
        ranks_(ranks) {}

  const ReducerOptions& options() const { return options_; }

  double bucket_elements() const {
    double sum = 0;
    for (const Bucket& bucket : buckets_) sum += static_cast<double>(bucket.elements());
    return sum;
  }
  double elements() const {
    return over_parameters([](const Tensor& whole) { return whole.numel(); });
  }
  double parameter_bytes() const {
    return over_parameters([](const Tensor& whole) { return whole.bytes(); });
  }
  double cells() const {
    return over_parameters([](const Tensor& whole) { return cell_count(whole.numel()); });
  }

  // Of the rank with the most.
  double shard_elements() const {
    return largest_shard([](const CellRun& run) { return static_cast<double>(run.elements); });
  }
  double shard_bytes() const {
    return largest_shard([this](const CellRun& run) {
      return static_cast<double>(run.elements) *
             static_cast<double>(size_of(model_.parameters[run.parameter].tensor.dtype()));
    });
  }

  // The unit in use and the one fetched ahead.
  double two_units() const {
    std::vector<double> bytes(model_.unit_of.empty() ? 1 : model_.unit_of.back() + 1);
    for (size_t i = 0; i < model_.parameters.size(); ++i)
      bytes[model_.unit_of.empty() ? 0 : model_.unit_of[i]] +=
          static_cast<double>(model_.parameters[i].tensor.bytes());
    double most = bytes[0];
    for (size_t unit = 0; unit < bytes.size(); ++unit)
      if (bytes.size() > 1) most = std::max(most, bytes[unit] + bytes[(unit + 1) % bytes.size()]);
    return most;
  }

  // Gradients that wait for the rest of their bucket, beside the early ones; and those of later
  // buckets that come with the bucket's last one, because one op computes them.
  double elements_in_flight() const {
    double early = 0, most = 0;
    for (size_t i : model_.early) early += elements_of(i);
    for (size_t b = 0; b < buckets_.size(); ++b) {
      double waiting = 0;
      for (const Bucket::Member& member : buckets_[b].members)
        if (!is_early(member.parameter)) waiting += elements_of(member.parameter);
      const std::string op = op_of(buckets_[b].members.back().parameter);
      for (size_t later = b + 1; later < buckets_.size(); ++later)
        for (const Bucket::Member& member : buckets_[later].members)
          if (op_of(member.parameter) == op && !is_early(member.parameter))
            waiting += elements_of(member.parameter);
      most = std::max(most, waiting);
    }
    return early + most;
  }

  // Of all parts, and of the largest.
  std::pair<double, double> payload() const {
    double all = 0, most = 0;
    for (int p = 0; p < ranks_; ++p) {
      double part = 0;
      for (const Bucket& bucket : buckets_) part += payload(bucket, p);
      all += part;
      most = std::max(most, part);
    }
    return {all, most};
  }

  // exchanges: of this bucket's gradients in a step.
  std::vector<double> link_bytes(const Topology& where, double exchanges) const {
    std::vector<double> of_bucket;
    for (const Bucket& bucket : buckets_) {
      double most = 0;
      for (int host = 0; host < where.hosts; ++host)
        most = std::max(most, where.hosts > 1 ? sent_by_host(bucket, where, host, exchanges)
                                              : moved_within_host(bucket, exchanges));
      of_bucket.push_back(most);
    }
    return of_bucket;
  }
  // Contributions are combined within a host before they travel.
  bool folds(const Topology& where) const {
    return options_.rules.only_floats() && where.hosts_are_blocks() && !nccl_sums_;
  }

  // Memory in which parts arrive at rank `me`.
  double arrivals(const Topology& where, int me) const {
    return by_nccl_ || model_.on_device ? device_arrivals(where, me) : host_arrivals(where, me);
  }

  // Of part p in all windows of gradients.
  double window_bytes(int p) const {
    const size_t count = options_.windows > 0 ? std::min<size_t>(options_.windows, buckets_.size())
                                              : buckets_.size();
    double sum = 0;
    for (size_t w = 0; w < count; ++w) {
      double most = 0;
      for (size_t b = w; b < buckets_.size(); b += count)
        most = std::max(most, part_bytes(buckets_[b], p));
      sum += most;
    }
    return sum;
  }
  double window_bytes() const {
    double sum = 0;
    for (int p = 0; p < ranks_; ++p) sum += window_bytes(p);
    return sum;
  }

 private:
  bool sharded() const { return options_.residence == Residence::sharded; }
  // Of other hosts, whose parts `me` deals with for its own host (HostCommunicator::partner).
  static std::vector<int> dealt_with(const Topology& where, int me) {
    const std::vector<int> peers = where.ranks_on(where.host_of[me]);
    std::vector<int> ranks;
    for (int r = 0; r < where.size; ++r)
      if (where.host_of[r] != where.host_of[me] && peers[r % peers.size()] == me)
        ranks.push_back(r);
    return ranks;
  }
  // From other hosts: gradients by rank, or by host where its ranks are summed before they travel;
  // parameters that have no place of their own, for all ranks of the host at one of them. Whole
  // parameters arrive where they live.
  double host_arrivals(const Topology& where, int me) const {
    const auto peers = std::ssize(where.ranks_on(where.host_of[me]));
    const auto senders = static_cast<double>(folds(where) ? where.hosts - 1 : where.size - peers);
    return senders * window_bytes(me) + (sharded() ? relay_bytes(dealt_with(where, me)) : 0);
  }
  // In the one operation that brings most: gradients to be summed, or sharded parameters of all
  // others.
  double device_arrivals(const Topology& where, int me) const {
    double most = 0;
    for (const Bucket& bucket : buckets_) {
      double others = 0;
      for (int r = 0; r < ranks_; ++r)
        if (r != me && sharded()) others += sharded_bytes(bucket.parts[r]);
      most = std::max({most, gradients_on_device(bucket, where, me), others});
    }
    return most;
  }
  double gradients_on_device(const Bucket& bucket, const Topology& where, int me) const {
    if (nccl_sums_) return 0;
    if (!folds(where)) return (ranks_ - 1) * part_bytes(bucket, me);
    const double from_hosts = (where.hosts - 1) * part_bytes(bucket, me);
    if (!by_nccl_) return from_hosts;  // summed on the host
    double dealt = part_bytes(bucket, me);
    for (int r : dealt_with(where, me)) dealt += part_bytes(bucket, r);
    const auto peers = static_cast<double>(where.ranks_on(where.host_of[me]).size()) - 1;
    return from_hosts + peers * dealt;
  }

  // In which a rank of a host hands on parts of parameters that come from the ranks `from`: of
  // every size as many buffers as two units need that follow each other, because the last reader of
  // one may be late when the next is fetched.
  double relay_bytes(const std::vector<int>& from) const {
    std::vector<std::map<double, int>> needed(1);  // by unit: how many of which size
    for (const Bucket& bucket : buckets_) {
      const size_t unit = model_.unit_of.empty() ? 0 : model_.unit_of[bucket.members[0].parameter];
      if (unit >= needed.size()) needed.resize(unit + 1);
      for (int r : from) ++needed[unit][sharded_bytes(bucket.parts[r])];
    }
    std::map<double, int> buffers;
    for (size_t unit = 0; unit < needed.size(); ++unit) {
      std::map<double, int> both = needed[unit];
      if (needed.size() > 1)
        for (const auto& [bytes, count] : needed[(unit + 1) % needed.size()]) both[bytes] += count;
      for (const auto& [bytes, count] : both) buffers[bytes] = std::max(buffers[bytes], count);
    }
    double sum = 0;
    for (const auto& [bytes, count] : buffers) sum += bytes * count;
    return sum;
  }

  template <class Size>
  double over_parameters(Size size) const {
    double sum = 0;
    for (const auto& [name, tensor] : model_.parameters) sum += static_cast<double>(size(tensor));
    return sum;
  }
  // Of part p; `encoded`: its bytes where gradients are not exchanged in place.
  double bytes_of(const Bucket& bucket, int p, decltype(wire_bytes)& encoded) const {
    return static_cast<double>(options_.rules.in_place()
                                   ? sizeof(float) * (bucket.edges[p + 1] - bucket.edges[p])
                                   : encoded(options_.rules, model_.parameters, bucket.parts[p]));
  }
  double payload(const Bucket& bucket, int p) const { return bytes_of(bucket, p, wire_bytes); }
  double part_bytes(const Bucket& bucket, int p) const {
    return bytes_of(bucket, p, wire_capacity);
  }
  // What its ranks have for a part of another host goes there once, or once per rank; its own parts
  // of the sum go once to every other host.
  double sent_by_host(const Bucket& bucket, const Topology& where, int host,
                      double exchanges) const {
    const double copies =
        folds(where) ? 1 : static_cast<double>(std::ranges::count(where.host_of, host));
    const double receivers = options_.rules.gather ? where.hosts - 1 : 0;
    double bytes = 0;
    for (int p = 0; p < ranks_; ++p)
      bytes += payload(bucket, p) * (where.host_of[p] == host ? receivers : copies * exchanges);
    return bytes;
  }
  double moved_within_host(const Bucket& bucket, double exchanges) const {
    double bytes = 0;
    for (int p = 0; p < ranks_; ++p)
      bytes += payload(bucket, p) * (ranks_ - 1) * (exchanges + (options_.rules.gather ? 1 : 0));
    return bytes;
  }
  // Runs begin on cache lines.
  double sharded_bytes(const std::vector<CellRun>& part) const {
    size_t sum = 0;
    for (const CellRun& run : part) {
      const DType dtype = model_.parameters[run.parameter].tensor.dtype();
      sum += (static_cast<size_t>(run.elements) * size_of(dtype) + 63) / 64 * 64;
    }
    return static_cast<double>(sum);
  }
  double elements_of(size_t i) const {
    return static_cast<double>(model_.parameters[i].tensor.numel());
  }
  // A weight and its bias; those of both layers of an MLP with gelu (core/ops/linear.h).
  std::string op_of(size_t i) const {
    const std::string& name = model_.parameters[i].name;
    const size_t mlp = name.find(".mlp.c_");
    return name.substr(0, mlp != std::string::npos ? mlp : name.rfind('.'));
  }
  bool is_early(size_t i) const { return std::ranges::find(model_.early, i) != model_.early.end(); }

  double largest_shard(const std::function<double(const CellRun&)>& size) const {
    double most = 0;
    for (int r = 0; r < ranks_; ++r) {
      double sum = 0;
      for (const Bucket& bucket : buckets_)
        for (const CellRun& run : bucket.parts[r]) sum += size(run);
      most = std::max(most, sum);
    }
    return most;
  }

  const ReducerOptions options_;
  const bool by_nccl_, nccl_sums_;
  const MemoryModel& model_;
  const std::vector<Bucket> buckets_;
  const int ranks_;
};

double parameter_peak(const Plan& plan) {
  return plan.options().residence == Residence::sharded ? plan.shard_bytes() + plan.two_units()
                                                        : plan.parameter_bytes();
}

double gradient_peak(const Plan& plan, int64_t micro_steps) {
  const ExchangeRules& rules = plan.options().rules;
  const double whole = plan.bucket_elements(), shard = plan.shard_elements();
  if (rules.in_place()) return 4 * whole;
  const bool tree = rules.order == SumOrder::any_world;
  const double open = tree ? std::bit_width(static_cast<uint64_t>(micro_steps)) - 1 : 0;
  return 4 * ((rules.keep_gradients ? whole : plan.elements_in_flight()) + shard +
              open * (rules.reduced ? shard : whole));
}

double buffer_peak(const Plan& plan) {
  const ExchangeRules& rules = plan.options().rules;
  double bytes = 8 * plan.cells();
  if (!rules.in_place()) bytes += plan.window_bytes();
  if (rules.codec && !rules.codec->lossless() && rules.error_feedback)
    bytes += 2 * 4 * (plan.bucket_elements() + plan.shard_elements());
  if (rules.momentum > 0) bytes += (2 * 4 + 1) * plan.bucket_elements();  // and a power of two
  return bytes;
}

double arrival_peak(const Plan& plan, const Topology& where) {
  double most = 0;
  for (int me = 0; me < where.size; ++me) most = std::max(most, plan.arrivals(where, me));
  return most;
}

}  // namespace

MemoryBytes model_states(double elements, int ranks, int zero_stage, const ElementBytes& bytes) {
  const auto term = [&](double per_element, int split_from) {
    return elements * per_element / (zero_stage >= split_from ? ranks : 1);
  };
  return {.parameters = term(bytes.parameter, 3),
          .gradients = term(bytes.gradient, 2),
          .optimizer = term(bytes.optimizer, 1)};
}

MemoryBytes memory_plan(const DistConfig& config, const MemoryModel& model, const Topology& where,
                        SumOrder order, int64_t micro_steps, double optimizer_bytes_per_element,
                        double momentum) {
  const Plan plan(config, model, where.size, order, momentum);
  const bool sharded = zero_stages.at(config.zero_stage).shards_optimizer;
  return {.parameters = parameter_peak(plan),
          .gradients = gradient_peak(plan, micro_steps),
          .optimizer =
              optimizer_bytes_per_element * (sharded ? plan.shard_elements() : plan.elements()),
          .buffers = buffer_peak(plan),
          .arrivals = arrival_peak(plan, where)};
}

WireBytes wire_plan(const DistConfig& config, const MemoryModel& model, int ranks, SumOrder order,
                    int64_t micro_steps) {
  const Plan plan(config, model, ranks, order);
  const ReducerOptions& options = plan.options();
  const auto [all, most] = plan.payload();
  const double others = ranks - 1;
  const double exchanges = options.rules.reduced ? static_cast<double>(micro_steps) : 1;
  const double passes = options.residence == Residence::replicated ? 0
                        : options.residence == Residence::gathered
                            ? 1
                            : 2 * static_cast<double>(micro_steps);
  double elements = 0, encoded = 0;
  for (const NamedTensor& p : model.parameters) {
    const auto count = static_cast<double>(p.tensor.numel());
    elements += count;
    if (is_compressed(options.rules, p.tensor)) encoded += count;
  }
  return {.gradients = exchanges * (all - all / ranks) + (options.rules.gather ? most * others : 0),
          .parameters = passes * plan.shard_bytes() * others,
          .compressed = encoded / elements};
}

std::vector<double> bucket_link_bytes(const DistConfig& config, const MemoryModel& model,
                                      const Topology& where, SumOrder order, int64_t micro_steps) {
  const Plan plan(config, model, where.size, order);
  const bool reduced = plan.options().rules.reduced;
  return plan.link_bytes(where, reduced ? static_cast<double>(micro_steps) : 1);
}

}  // namespace lockstep
