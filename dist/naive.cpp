// After backward, one parameter after the other: copy the gradient where all can see it, sum over
// ranks, copy it back. Not used in practice, but the place to start, and what the bucketed form is
// tested against. Read next: buckets.h.
#include "dist/naive.h"

#include <chrono>

#include "core/autograd.h"
#include "core/backend.h"
#include "dist/gradient_norm.h"

namespace lockstep {

namespace {

using Clock = std::chrono::steady_clock;

class Naive : public DataParallel {
 public:
  Naive(const DistConfig& config, Communicator& communicator, std::vector<NamedTensor> parameters)
      : reduced_(config.reduced()),
        communicator_(communicator),
        parameters_(std::move(parameters)),
        norm_(parameters_) {
    for (const auto& [name, tensor] : parameters_) {
      windows_.push_back(communicator.window(name, even_parts(static_cast<size_t>(tensor.numel()),
                                                              sizeof(float), communicator.size())));
      windows_.back()->let_transport_sum();
      const auto mine = windows_.back()->mine();
      const auto storage =
          Allocator::current().adopt(mine.data(), mine.size(), Category::buffers, windows_.back());
      sums_.push_back(Tensor::over(storage, 0, tensor.shape(), DType::f32));
      CategoryScope scope(Category::gradients);
      means_.push_back(Tensor::zeros(tensor.shape()));
    }
  }

  // When a backward pass has ended, nobody says; so what it left is exchanged when the next begins.
  void begin_micro_step(const MicroStep& micro) override {
    if (micro.index == 0) report_ = {};
    if (reduced_ && micro.index > 0) exchange_all(micro.index > 1);
    if (reduced_ || micro.index == 0)
      for (size_t i = 0; i < parameters_.size(); ++i) leaf(i).reset_grad();
    micro_ = micro;
  }

  GradientReport finish() override {
    exchange_all(reduced_ && micro_.index > 0);
    for (size_t i = 0; i < parameters_.size(); ++i) {
      Tensor cells = Tensor::empty({std::ssize(norm_.cells(i))}, DType::f64);
      backend().cell_norms(means_[i], cells);
      norm_.cells(i) = cells.to_vector<double>();
    }
    norm_.finish(report_);
    first_step_ = false;
    return report_;
  }

  const std::vector<NamedTensor>& shards() const override { return parameters_; }
  const Tensor& gradient(size_t i) const override { return means_[i]; }
  void end_step(bool) override {}
  void precondition(const std::vector<Tensor>&) override {}  // no codec
  void shards_changed() override {}
  void acquire(size_t) override {}
  void release(size_t) override {}
  std::vector<NamedTensor> state() const override { return {}; }
  void set_overlap(bool overlap) override {
    check(!overlap, "[data_parallel] the naive form sends nothing while something is computed");
  }
  const StepTrace& trace() const override { return trace_; }
  const std::vector<std::string>& unused() const override { return unused_; }

 private:
  Leaf& leaf(size_t i) const { return parameters_[i].tensor.leaf(); }

  // Sums this rank's gradients over ranks, into means_ or on top of what earlier micro steps left.
  void exchange_all(bool accumulate) {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      communicator_.reclaim(windows_[i]).wait();
      if (leaf(i).has_grad())
        backend().copy(leaf(i).grad, sums_[i], false);
      else
        count_as_zero(i);
      all_reduce(windows_[i]);
      backend().copy(sums_[i], means_[i], accumulate);
    }
  }

  void count_as_zero(size_t i) {
    backend().fill(sums_[i], 0.0f);
    if (first_step_ && micro_.last()) unused_.push_back(parameters_[i].name);
  }

  void all_reduce(const WindowPtr& window) {
    Stream& stream = backend().stream();
    stream.synchronize();
    const auto start = Clock::now();
    const Work work = communicator_.all_reduce(window, sum_floats);
    work.wait();
    stream.synchronize();
    const Work::Timing timing = work.timing();
    report_ += comm_times(start, Clock::now(), {{timing.arrived, timing.finished}});
    report_.wire_bytes += static_cast<int64_t>(work.traffic().to_ranks);
    report_.host_bytes += static_cast<int64_t>(work.traffic().to_hosts);
  }

  const bool reduced_;
  Communicator& communicator_;
  const std::vector<NamedTensor> parameters_;
  GradientNorm norm_;
  std::vector<WindowPtr> windows_;  // by parameter
  std::vector<Tensor> sums_;        // over ranks, of one micro step: the windows' memory
  std::vector<Tensor> means_;
  std::vector<std::string> unused_;
  MicroStep micro_;
  GradientReport report_;
  const StepTrace trace_;  // of nothing: it computes and sends in turn
  bool first_step_ = true;
};

}  // namespace

std::unique_ptr<DataParallel> make_naive(const DistConfig& config, Communicator& communicator,
                                         std::vector<NamedTensor> parameters) {
  return std::make_unique<Naive>(config, communicator, std::move(parameters));
}

}  // namespace lockstep
