// The two forms of data parallelism: Naive, to read first, and Bucketed. Read next:
// ../examples/replica.cpp.
#include "dist/data_parallel.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/autograd.h"
#include "core/backend.h"
#include "core/parallel.h"
#include "dist/buckets.h"
#include "optim/schedule.h"

namespace lockstep {

namespace {

using Clock = std::chrono::steady_clock;

// What both forms share: the parameters, the bookkeeping of micro steps, the norm.
class DataParallelBase : public DataParallel {
 public:
  DataParallelBase(Communicator& communicator, std::vector<NamedTensor> parameters)
      : communicator_(communicator),
        parameters_(std::move(parameters)),
        norms_(parameters_.size()) {
    for (size_t i = 0; i < parameters_.size(); ++i)
      norms_[i].resize(static_cast<size_t>(cell_count(parameters_[i].tensor.numel())));
  }

  const std::vector<std::string>& unused() const override { return unused_; }

 protected:
  Leaf& leaf(size_t i) const { return parameters_[i].tensor.leaf(); }
  size_t count() const { return parameters_.size(); }
  int64_t elements(size_t i) const { return parameters_[i].tensor.numel(); }

  // What an all-reduce sends: to each owner its part, to everyone my part of the result.
  int64_t wire_bytes(const Window& window) const {
    const auto mine = static_cast<int64_t>(window.part_bytes(communicator_.rank()));
    return static_cast<int64_t>(window.bytes()) - mine + mine * (communicator_.size() - 1);
  }

  // No contribution means a gradient of zero.
  void fill_missing(size_t i, Tensor& gradient) {
    if (leaf(i).has_grad()) return;
    backend().fill(gradient, 0.0f);
    if (first_step_) unused_.push_back(parameters_[i].name);
  }

  // From norms_, the sums of squares by parameter and cell: a tree over parameters of trees over
  // cells.
  void finish_norm(GradientReport& report) {
    std::vector<double> by_parameter;
    for (size_t i = 0; i < count(); ++i) {
      by_parameter.push_back(tree_sum(norms_[i]));
      if (report.non_finite.empty() && !std::isfinite(by_parameter.back()))
        report.non_finite = parameters_[i].name;
    }
    report.norm = std::sqrt(tree_sum(by_parameter));
    first_step_ = false;
  }

  Communicator& communicator_;
  std::vector<NamedTensor> parameters_;
  std::vector<std::vector<double>> norms_;
  std::vector<std::string> unused_;
  bool first_step_ = true;
};

// After backward, one parameter after the other: copy the gradient where all can see it, sum over
// ranks, copy it back. Not used in practice, but the place to start, and what Bucketed is tested
// against.
class Naive : public DataParallelBase {
 public:
  Naive(Communicator& communicator, std::vector<NamedTensor> parameters)
      : DataParallelBase(communicator, std::move(parameters)), gradients_(count()) {
    for (size_t i = 0; i < count(); ++i)
      windows_.push_back(communicator.window(
          parameters_[i].name,
          even_parts(static_cast<size_t>(elements(i)), sizeof(float), communicator.size())));
  }

  void begin_micro_step(int64_t micro, int64_t) override {
    if (micro > 0) return;
    for (size_t i = 0; i < count(); ++i) leaf(i).reset_grad();
  }

  GradientReport finish() override {
    GradientReport report;
    for (size_t i = 0; i < count(); ++i) {
      if (!leaf(i).grad.defined()) {
        CategoryScope scope(Category::gradients);
        leaf(i).grad = Tensor::empty(leaf(i).shape);
      }
      Tensor& gradient = gradients_[i] = leaf(i).grad;
      fill_missing(i, gradient);
      all_reduce(windows_[i], gradient, report);
      report.wire_bytes += wire_bytes(*windows_[i]);
      Tensor cells = Tensor::empty({std::ssize(norms_[i])}, DType::f64);
      backend().cell_norms(gradient, cells);
      norms_[i] = cells.to_vector<double>();
    }
    finish_norm(report);
    return report;
  }

  const Tensor& gradient(size_t i) const override { return gradients_[i]; }
  void release() override {}

 private:
  void all_reduce(const WindowPtr& window, Tensor& gradient, GradientReport& report) {
    communicator_.reclaim(window).wait();
    std::memcpy(window->mine().data(), gradient.raw(), gradient.bytes());
    const auto start = Clock::now();
    Clock::time_point arrived;
    const Work work = communicator_.all_reduce(window, [&arrived](auto views, auto outs) {
      arrived = Clock::now();
      sum_floats(views, outs);
    });
    work.wait();
    const CommTimes times = comm_times(start, Clock::now(), {{arrived, work.timing().finished}});
    report.comm_ms += times.comm_ms;
    report.exposed_ms += times.exposed_ms;
    report.wait_ms += times.wait_ms;
    std::memcpy(gradient.raw(), window->mine().data(), gradient.bytes());
  }
  std::vector<WindowPtr> windows_;  // by parameter
  std::vector<Tensor> gradients_;
};

// Gradients are written straight into buckets that all ranks of a host can read. A bucket whose
// last gradient has arrived is summed by the communication thread while backward goes on with the
// next. Buckets are launched in order of their index, never of their readiness, so that all ranks
// issue the same sequence (Li et al., "PyTorch Distributed", VLDB 2020).
class Bucketed : public DataParallelBase {
 public:
  Bucketed(const DistConfig& config, Communicator& communicator,
           std::vector<NamedTensor> parameters)
      : DataParallelBase(communicator, std::move(parameters)),
        overlap_(config.overlap),
        gradients_(count()),
        arrived_(count()) {
    const auto bytes = static_cast<int64_t>(config.bucket_mb * (1 << 20));
    for (Bucket& plan : plan_buckets(parameters_, bytes, communicator.size()))
      buckets_.push_back(std::make_unique<Flight>(std::move(plan)));
    for (size_t b = 0; b < buckets_.size(); ++b) bind(b);
    CategoryScope scope(Category::gradients);
    for (size_t i = 0; i < count(); ++i)  // parameters without elements are in no bucket
      if (elements(i) == 0) gradients_[i] = Tensor::empty(parameters_[i].tensor.shape());
    place_norms();
  }

  ~Bucketed() override {
    for (size_t b = 0; b < launched_; ++b) settle(buckets_[b]->work);
    for (size_t i = 0; i < count(); ++i) unbind(leaf(i));
  }

  void begin_micro_step(int64_t micro, int64_t micro_steps) override {
    last_micro_ = micro + 1 == micro_steps;
    if (micro > 0) return;
    launched_ = 0;
    arrived_.assign(count(), false);
    for (auto& flight : buckets_) {
      flight->missing = flight->plan.members.size();
      communicator_.reclaim(flight->window).wait();
    }
    communicator_.reclaim(norm_window_).wait();
    for (size_t i = 0; i < count(); ++i) leaf(i).reset_grad();
  }

  GradientReport finish() override {
    for (size_t i = 0; i < count(); ++i) fill_missing(i, gradients_[i]);
    const auto start = Clock::now();
    while (launched_ < buckets_.size()) launch(launched_);
    GradientReport report;
    std::vector<CommSpan> spans;
    for (auto& flight : buckets_) {
      flight->work.wait();
      spans.push_back({flight->arrived, flight->work.timing().finished});
      report.wire_bytes += wire_bytes(*flight->window);
    }
    const Work norms = communicator_.gather(norm_window_);
    norms.wait();
    spans.push_back({norms.timing().arrived, norms.timing().finished});
    static_cast<CommTimes&>(report) = comm_times(start, Clock::now(), std::move(spans));
    collect_norms();
    finish_norm(report);
    return report;
  }

  const Tensor& gradient(size_t i) const override { return gradients_[i]; }
  void release() override {}

 private:
  // A bucket and its way through a step.
  struct Flight {
    explicit Flight(Bucket plan) : plan(std::move(plan)) {}
    const Bucket plan;
    WindowPtr window;
    std::vector<std::pair<Tensor, Tensor>> my_cells;  // runs of my part, and where their sums go
    size_t missing = 0;  // members whose gradient has not arrived in the last micro step
    Work work;
    Clock::time_point arrived;  // the last rank's part was there; written before work is done
  };

  // What hangs on a leaf, typed so that it can be told from what others hang there.
  struct Binding {
    const Bucketed* owner;
    Tensor gradient;
    Tensor operator()() const { return gradient; }
  };
  struct Arrival {
    Bucketed* owner;
    size_t parameter, bucket;
    void operator()() const { owner->arrive(parameter, bucket); }
  };

  // Makes the bucket's memory the gradients' memory.
  void bind(size_t b) {
    Flight& flight = *buckets_[b];
    std::vector<size_t> part_bytes;
    for (int r = 0; r < communicator_.size(); ++r)
      part_bytes.push_back(static_cast<size_t>(flight.plan.edges[r + 1] - flight.plan.edges[r]) *
                           sizeof(float));
    flight.window = communicator_.window(fmt::format("bucket {}", b), part_bytes);
    const auto storage = adopt(flight.window, Category::gradients);
    for (const auto& [i, offset] : flight.plan.members) {
      gradients_[i] = Tensor::over(storage, offset, parameters_[i].tensor.shape(), DType::f32);
      leaf(i).release_grad();
      leaf(i).bind_grad = Binding{this, gradients_[i]};
      leaf(i).on_grad_ready.push_back(Arrival{this, i, b});
    }
    for (const CellRun& run : flight.plan.parts[communicator_.rank()])
      flight.my_cells.emplace_back(Tensor::over(storage, run.offset, {run.elements}, DType::f32),
                                   Tensor());
  }

  // A successor may have bound the leaf already.
  void unbind(Leaf& leaf) {
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
  static void settle(const Work& work) {
    try {
      work.wait();
    } catch (const std::exception&) {
    }
  }

  // One double per cell, in the part of the rank that owns the cell.
  void place_norms() {
    std::vector<size_t> bytes(communicator_.size(), 0);
    for (const auto& flight : buckets_)
      for (int r = 0; r < communicator_.size(); ++r)
        for (const CellRun& run : flight->plan.parts[r])
          bytes[r] += static_cast<size_t>(run.cells) * sizeof(double);
    norm_window_ = communicator_.window("gradient norms", bytes);
    const auto storage = adopt(norm_window_, Category::buffers);
    auto at =
        static_cast<int64_t>(norm_window_->part_offset(communicator_.rank()) / sizeof(double));
    for (const auto& flight : buckets_)
      for (auto& [part, sums] : flight->my_cells) {
        sums = Tensor::over(storage, at, {cell_count(part.numel())}, DType::f64);
        at += sums.numel();
      }
  }

  static std::shared_ptr<Storage> adopt(const WindowPtr& window, Category category) {
    return Allocator::current().adopt(window->mine().data(), window->bytes(), category, window);
  }

  // A leaf that was reached without a contribution is left to finish(), which fills it.
  void arrive(size_t i, size_t b) {
    if (!last_micro_ || !leaf(i).has_grad()) return;
    if (arrived_[i])
      fail(Exit::internal,
           "[data_parallel] a second backward pass reached '{}' in the last micro step; call "
           "begin_micro_step before each",
           parameters_[i].name);
    arrived_[i] = true;
    if (!overlap_) return;
    buckets_[b]->missing--;
    while (launched_ < buckets_.size() && buckets_[launched_]->missing == 0) launch(launched_);
  }

  void launch(size_t b) {
    Flight& flight = *buckets_[b];
    flight.work = communicator_.all_reduce(flight.window, [&flight](auto views, auto outs) {
      flight.arrived = Clock::now();
      sum_floats(views, outs);
      measure_cells(flight);
    });
    launched_++;
  }

  // On the communication thread, while my part of the sum is in the cache.
  static void measure_cells(Flight& flight) {
    set_num_threads(1);  // of this thread: the others belong to backward
    for (auto& [part, sums] : flight.my_cells) backend().cell_norms(part, sums);
  }

  // The norm window holds, rank after rank, the cells of its parts of all buckets.
  void collect_norms() {
    const auto* sums = reinterpret_cast<const double*>(norm_window_->mine().data());
    for (int r = 0; r < communicator_.size(); ++r)
      for (const auto& flight : buckets_)
        for (const CellRun& run : flight->plan.parts[r]) {
          std::copy_n(sums, run.cells, norms_[run.parameter].begin() + run.cell);
          sums += run.cells;
        }
  }

  const bool overlap_;
  std::vector<std::unique_ptr<Flight>> buckets_;
  std::vector<Tensor> gradients_;  // by parameter, views of the buckets
  std::vector<bool> arrived_;      // by parameter, in the last micro step
  WindowPtr norm_window_;
  bool last_micro_ = false;
  size_t launched_ = 0;
};

}  // namespace

std::unique_ptr<DataParallel> make_data_parallel(const DistConfig& config,
                                                 Communicator& communicator,
                                                 std::vector<NamedTensor> parameters) {
  if (config.reducer == "naive")
    return std::make_unique<Naive>(communicator, std::move(parameters));
  return std::make_unique<Bucketed>(config, communicator, std::move(parameters));
}

}  // namespace lockstep
