// Gradients arrive in buckets; a bucket whose last gradient has arrived is exchanged while backward
// goes on with the next. Buckets are launched in order of their index, never of their readiness, so
// that all ranks issue the same sequence (Li et al., "PyTorch Distributed", VLDB 2020). What
// happens to a bucket is bucket_exchange.h's matter, where parameters live placement.cpp's. Read
// next: bucket_exchange.h.
#include "dist/reducer.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "core/autograd.h"
#include "core/backend.h"
#include "core/recording.h"
#include "dist/gradient_norm.h"

namespace lockstep {

namespace {

using Clock = std::chrono::steady_clock;

class Reducer : public DataParallel {
 public:
  Reducer(const ReducerOptions& options, Communicator& communicator,
          std::vector<NamedTensor> parameters, std::vector<size_t> unit_of,
          const Initialise& initialise)
      : options_(options),
        communicator_(communicator),
        parameters_(std::move(parameters)),
        buckets_(plan_buckets(parameters_, options.bucket_bytes, communicator.size(),
                              options.units_apart ? unit_of : std::vector<size_t>{})),
        recorder_(communicator.topology()),
        placement_(make_placement(options.residence, communicator, parameters_, unit_of, buckets_,
                                  recorder_, initialise)),
        norm_(parameters_),
        overlap_(options.overlap) {
    placement_->set_overlap(overlap_);
    for (const Bucket& bucket : buckets_)
      exchanges_.push_back(make_bucket_exchange(options.rules, communicator, parameters_, bucket));
    open_windows();
    for (size_t b = 0; b < buckets_.size(); ++b)
      for (size_t m = 0; m < buckets_[b].members.size(); ++m) attach(b, m);
    collect_means();
  }

  ~Reducer() override {
    settle();
    for (const auto& [name, tensor] : parameters_) detach(tensor.leaf());
  }

  void begin_micro_step(const MicroStep& micro) override {
    if (micro.index == 0) begin_step(micro);
    if (micro.index > 0 && options_.rules.every_micro_step()) launch_rest();
    micro_ = micro;
    ready_ = launched_ = 0;
    arrived_.assign(parameters_.size(), false);
    zeroed_.assign(parameters_.size(), false);
    missing_.clear();
    for (const Bucket& bucket : buckets_) missing_.push_back(bucket.members.size());
    if (!micro.replayed && (micro.index == 0 || options_.rules.every_micro_step()))
      for (const auto& [name, tensor] : parameters_) tensor.leaf().reset_grad();
  }

  GradientReport finish() override {
    auto start = Clock::now();
    launch_rest();
    const EventPtr computed = backend().stream().record();
    recorder_.needed_all();
    for (const auto& exchange : exchanges_) recorder_.wait_for_transfer([&] { exchange->wait(); });
    const Work norms = communicator_.gather(norm_window_);
    const size_t transfer = recorder_.ready(StepTrace::What::norms, 0);
    recorder_.needed(transfer);
    recorder_.wait_for_transfer([&] { norms.wait(); });
    recorder_.sent(transfer, norms.traffic());
    if (computed) start = wait_for_device(*computed);
    GradientReport report;
    std::vector<CommSpan> spans;
    for (size_t b = 0; b < buckets_.size(); ++b) finish_bucket(b, report, spans);
    spans.push_back({norms.timing().arrived, norms.timing().finished});
    static_cast<CommTimes&>(report) = comm_times(start, Clock::now(), std::move(spans));
    collect_norms();
    norm_.finish(report);
    placement_->begin_update();
    placement_->report(report);
    first_step_ = false;
    return report;
  }

  const std::vector<NamedTensor>& shards() const override { return placement_->shards(); }
  const Tensor& gradient(size_t i) const override { return means_[i]; }

  void end_step(bool committed) override {
    for (const auto& exchange : exchanges_) exchange->end_step(committed);
    recorder_.next_step();
    placement_->publish();
  }
  void precondition(const std::vector<Tensor>& moments) override {
    size_t shard = 0;
    for (size_t b = 0; b < buckets_.size(); ++b) {
      std::vector<const float*> of_my_runs;
      for (const CellRun& run : buckets_[b].parts[communicator_.rank()])
        of_my_runs.push_back(options_.rules.gather
                                 ? moments[run.parameter].data<float>() + run.cell * cell_size
                                 : moments[shard++].data<float>());
      exchanges_[b]->precondition(of_my_runs);
    }
  }
  void shards_changed() override {
    placement_->begin_update();
    placement_->publish();
  }
  void acquire(size_t unit) override { placement_->acquire(unit); }
  void release(size_t unit) override { placement_->release(unit); }

  std::vector<NamedTensor> state() const override {
    std::vector<NamedTensor> all;
    for (const auto& exchange : exchanges_) {
      const std::vector<NamedTensor> theirs = exchange->residuals();
      all.insert(all.end(), theirs.begin(), theirs.end());
    }
    return all;
  }
  void set_overlap(bool overlap) override {
    overlap_ = overlap;
    placement_->set_overlap(overlap);
  }
  const StepTrace& trace() const override { return recorder_.last(); }
  const std::vector<std::string>& unused() const override { return unused_; }

 private:
  // What hangs on a leaf, typed so that it can be told from what others hang there.
  struct Binding {
    const Reducer* owner;
    size_t bucket, member;
    Tensor operator()() const { return owner->exchanges_[bucket]->buffer(member); }
  };
  struct Arrival {
    Reducer* owner;
    size_t parameter, bucket, member;
    void operator()() const { owner->arrive(parameter, bucket, member); }
  };

  Leaf& leaf(size_t i) const { return parameters_[i].tensor.leaf(); }

  void open_windows() {
    const size_t count = options_.windows > 0 ? std::min<size_t>(options_.windows, buckets_.size())
                                              : buckets_.size();
    std::vector<std::vector<size_t>> bytes(count, std::vector<size_t>(communicator_.size()));
    for (size_t b = 0; b < buckets_.size(); ++b) {
      const std::vector<size_t> needed = exchanges_[b]->capacity();
      for (size_t p = 0; p < needed.size(); ++p)
        bytes[b % count][p] = std::max(bytes[b % count][p], needed[p]);
    }
    for (size_t w = 0; w < count; ++w)
      windows_.push_back(communicator_.window(fmt::format("bucket {}", w), bytes[w]));
    if (!options_.rules.in_place())  // else they are the gradients, and counted as such
      for (const WindowPtr& window : windows_)
        counted_.push_back(Allocator::current().adopt(window->mine().data(), window->bytes(),
                                                      Category::buffers, window));
    place_norms();
  }

  // One double per cell, in the part of the rank that owns the cell.
  void place_norms() {
    std::vector<size_t> bytes(communicator_.size(), 0);
    for (const Bucket& bucket : buckets_)
      for (int r = 0; r < communicator_.size(); ++r)
        for (const CellRun& run : bucket.parts[r])
          bytes[r] += static_cast<size_t>(run.cells) * sizeof(double);
    norm_window_ = communicator_.window("gradient norms", bytes);
    const auto storage = Allocator::current().adopt(
        norm_window_->mine().data(), norm_window_->bytes(), Category::buffers, norm_window_);
    all_norms_ = Tensor::over(
        storage, 0, {static_cast<int64_t>(norm_window_->bytes() / sizeof(double))}, DType::f64);
    auto at =
        static_cast<int64_t>(norm_window_->part_offset(communicator_.rank()) / sizeof(double));
    for (size_t b = 0; b < buckets_.size(); ++b) {
      std::vector<Tensor> norms;
      for (const CellRun& run : buckets_[b].parts[communicator_.rank()]) {
        norms.push_back(Tensor::over(storage, at, {run.cells}, DType::f64));
        at += run.cells;
      }
      exchanges_[b]->use(windows_[b % windows_.size()], std::move(norms));
    }
  }

  void attach(size_t b, size_t m) {
    const size_t i = buckets_[b].members[m].parameter;
    leaf(i).release_grad();
    leaf(i).bind_grad = Binding{this, b, m};
    leaf(i).on_grad_ready.push_back(Arrival{this, i, b, m});
  }

  // A successor may have bound the leaf already.
  void detach(Leaf& leaf) {
    std::erase_if(leaf.on_grad_ready, [this](const auto& hook) {
      const auto* arrival = hook.template target<Arrival>();
      return arrival && arrival->owner == this;
    });
    const auto* binding = leaf.bind_grad.target<Binding>();
    if (!binding || binding->owner != this) return;
    leaf.bind_grad = nullptr;
    leaf.release_grad();
  }

  // The communication thread may be at work on my memory. It must not own that memory either, which
  // belongs to the rank's allocator and could not outlive it. What went wrong there is known
  // already, or is about to be: a destructor has no one to tell.
  void settle() {
    for (const auto& exchange : exchanges_) {
      try {
        exchange->wait();
      } catch (const std::exception&) {
      }
    }
  }

  void begin_step(const MicroStep& first) {
    in_window_.assign(windows_.size(), std::nullopt);
    transfer_of_.resize(buckets_.size());
    communicator_.reclaim(norm_window_).wait();
    for (const auto& exchange : exchanges_) exchange->begin_step(first);
  }

  // A leaf that was reached without a contribution is left to launch_rest(), which fills it.
  void arrive(size_t i, size_t b, size_t m) {
    if (!leaf(i).has_grad()) return;
    repeat_on_host([this, i, b, m, at = leaf(i).grad.raw()] {
      if (micro_.replayed) exchanges_[b]->replayed(m, at);
      count_arrival(i, b);
    });
    if (overlap_ && launched_ < ready_) repeat_between_kernels([this] { launch_ready(); });
  }

  void count_arrival(size_t i, size_t b) {
    if (!launches()) return;
    if (arrived_[i])
      fail(Exit::internal,
           "[data_parallel] a second backward pass reached '{}' in one micro step; call "
           "begin_micro_step before each",
           parameters_[i].name);
    arrived_[i] = true;
    missing_[b]--;
    while (ready_ < buckets_.size() && missing_[ready_] == 0) get_ready(ready_++);
  }

  void launch_ready() {
    while (launched_ < ready_) launch(launched_++);
  }

  bool launches() const { return micro_.last() || options_.rules.every_micro_step(); }

  // A tree over this rank's micro steps is sent when it is complete, whatever is handed over
  // before.
  bool sends() const { return micro_.last() || options_.rules.reduced; }

  // Buckets that share a window wait for each other.
  void get_ready(size_t b) {
    if (!sends()) return;
    std::optional<size_t>& in_window = in_window_[b % windows_.size()];
    if (in_window) recorder_.needed(*in_window);
    transfer_of_[b] = recorder_.ready(StepTrace::What::gradients, b);
    in_window = transfer_of_[b];
  }

  void launch(size_t b) {
    if (!sends()) return exchanges_[b]->launch(micro_);
    recorder_.wait_for_transfer(
        [&] { communicator_.reclaim(windows_[b % windows_.size()]).wait(); });
    recorder_.make_up(transfer_of_[b], [&] { exchanges_[b]->launch(micro_); });
  }

  // What backward left: buckets with a parameter that got no gradient, and those that wait for
  // them; without overlap, all.
  void launch_rest() {
    for (; ready_ < buckets_.size(); ++ready_) {
      for (size_t m = 0; m < buckets_[ready_].members.size(); ++m) count_as_zero(ready_, m);
      get_ready(ready_);
      if (overlap_) launch(launched_++);
    }
    if (!overlap_) launch_and_wait();
    if (first_step_ && micro_.last()) name_unused();
  }

  // The slowest rank is awaited first, so that what is waited for then is communication.
  void launch_and_wait() {
    if (sends()) recorder_.wait_for_ranks([&] { communicator_.barrier(); });
    while (launched_ < buckets_.size()) launch(launched_++);
    for (const WindowPtr& window : windows_)
      recorder_.wait_for_transfer([&] { communicator_.reclaim(window).wait(); });
  }

  // What is queued has not run yet, and the norms are read next, so the host may as well wait here.
  // Returns when the device had computed the gradients: from then on it waited for transfers.
  Clock::time_point wait_for_device(const Event& computed) {
    computed.wait();
    const auto start = Clock::now();
    recorder_.wait_for_transfer([] { backend().stream().synchronize(); });
    return start;
  }

  void finish_bucket(size_t b, GradientReport& report, std::vector<CommSpan>& spans) {
    const int64_t wire = report.wire_bytes, host = report.host_bytes;
    exchanges_[b]->finish(report, spans);
    recorder_.sent_gradients(b, {.to_ranks = static_cast<size_t>(report.wire_bytes - wire),
                                 .to_hosts = static_cast<size_t>(report.host_bytes - host)});
  }

  void count_as_zero(size_t b, size_t m) {
    const size_t i = buckets_[b].members[m].parameter;
    if (leaf(i).has_grad() || arrived_[i]) return;  // of a replay its leaf may know nothing
    Tensor zero = exchanges_[b]->buffer(m);
    backend().fill(zero, 0.0f);
    zeroed_[i] = true;
  }

  void name_unused() {
    for (size_t i = 0; i < parameters_.size(); ++i)
      if (zeroed_[i] || (parameters_[i].tensor.numel() == 0 && !leaf(i).has_grad()))
        unused_.push_back(parameters_[i].name);
  }

  // The norm window holds, rank after rank, the cells of its parts of all buckets.
  void collect_norms() {
    const std::vector<double> all = all_norms_.to_vector<double>();
    auto sums = all.begin();
    for (int r = 0; r < communicator_.size(); ++r)
      for (const Bucket& bucket : buckets_)
        for (const CellRun& run : bucket.parts[r]) {
          std::copy_n(sums, run.cells, norm_.cells(run.parameter).begin() + run.cell);
          sums += run.cells;
        }
  }

  // In the order of shards().
  void collect_means() {
    if (!options_.rules.gather) {
      for (const auto& exchange : exchanges_)
        for (Tensor& mean : exchange->means()) means_.push_back(std::move(mean));
      return;
    }
    for (const auto& [name, tensor] : parameters_)
      means_.push_back(tensor.numel() > 0 ? Tensor() : Tensor::empty(tensor.shape()));
    for (size_t b = 0; b < buckets_.size(); ++b) {
      const std::vector<Tensor> means = exchanges_[b]->means();
      for (size_t m = 0; m < means.size(); ++m) means_[buckets_[b].members[m].parameter] = means[m];
    }
  }

  const ReducerOptions options_;
  Communicator& communicator_;
  const std::vector<NamedTensor> parameters_;
  const std::vector<Bucket> buckets_;
  StepRecorder recorder_;
  const std::unique_ptr<Placement> placement_;
  GradientNorm norm_;
  bool overlap_;
  std::vector<std::unique_ptr<BucketExchange>> exchanges_;  // by bucket
  std::vector<WindowPtr> windows_;
  std::vector<std::shared_ptr<Storage>> counted_;
  WindowPtr norm_window_;
  Tensor all_norms_;           // all of it
  std::vector<Tensor> means_;  // by shard; their memory stays
  std::vector<std::string> unused_;
  MicroStep micro_;

  // Of the step under way, transfers of the trace.
  std::vector<std::optional<size_t>> in_window_;  // the last one that used it
  std::vector<size_t> transfer_of_;               // by bucket, the last one

  // Of the micro step under way.
  size_t ready_ = 0, launched_ = 0;  // buckets: complete in order, and handed over
  std::vector<size_t> missing_;      // by bucket: members whose gradient has not arrived
  std::vector<bool> arrived_;        // by parameter
  std::vector<bool> zeroed_;         // by parameter: none came, so it counts as zero
  bool first_step_ = true;
};

}  // namespace

std::unique_ptr<DataParallel> make_reducer(const ReducerOptions& options,
                                           Communicator& communicator,
                                           std::vector<NamedTensor> parameters,
                                           std::vector<size_t> unit_of,
                                           const Initialise& initialise) {
  return std::make_unique<Reducer>(options, communicator, std::move(parameters), std::move(unit_of),
                                   initialise);
}

}  // namespace lockstep
