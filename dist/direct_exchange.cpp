// Gradients are written straight into the window, in fp32, and summed where they stand. There is
// nothing to encode and nothing to keep. Read next: wire.h and staged_exchange.cpp, which is the
// same with more steps.
#include "core/tensor.h"
#include "dist/bucket_exchange.h"
#include "dist/placement.h"

namespace lockstep {

namespace {

class Direct : public BucketExchange {
 public:
  Direct(const ExchangeRules& rules, Communicator& communicator,
         const std::vector<NamedTensor>& parameters, const Bucket& bucket)
      : rules_(rules), communicator_(communicator), parameters_(parameters), bucket_(bucket) {}

  std::vector<size_t> capacity() const override {
    std::vector<size_t> bytes;
    for (int r = 0; r < communicator_.size(); ++r)
      bytes.push_back(static_cast<size_t>(bucket_.edges[r + 1] - bucket_.edges[r]) * sizeof(float));
    return bytes;
  }

  void use(const WindowPtr& window, std::vector<Tensor> norms) override {
    window_ = window;
    window_->fold_with(sum_floats);
    window_->let_transport_sum();
    norms_ = std::move(norms);
    const auto storage = Allocator::current().adopt(window->mine().data(), window->bytes(),
                                                    Category::gradients, window);
    for (const auto& [i, offset] : bucket_.members)
      members_.push_back(Tensor::over(storage, offset, parameters_[i].tensor.shape(), DType::f32));
    for (const CellRun& run : bucket_.parts[communicator_.rank()])
      shard_.push_back(
          shard_view(parameters_[run.parameter], run, storage, run.offset, DType::f32).tensor);
  }

  void begin_step(const MicroStep&) override { communicator_.reclaim(window_).wait(); }
  Tensor buffer(size_t member) override { return members_[member]; }
  void replayed(size_t, void*) override {}  // it is where it always is

  void launch(const MicroStep&) override {
    if (rules_.gather) {
      work_ = communicator_.all_reduce(window_, [this](auto views, auto outs) {
        sum_floats(views, outs);
        measure(shard_, norms_);
      });
    } else {
      work_ = communicator_.exchange(window_,
                                     [this, out = window_->part(communicator_.rank())](auto views) {
                                       sum_floats(views, {&out, 1});
                                       measure(shard_, norms_);
                                     });
    }
  }

  void wait() override { work_.wait(); }
  void finish(GradientReport& report, std::vector<CommSpan>& spans) override {
    add_work(work_, report, spans);
  }
  void end_step(bool) override {}
  void precondition(const std::vector<const float*>&) override {}  // no codec
  std::vector<Tensor> means() override { return rules_.gather ? members_ : shard_; }
  std::vector<NamedTensor> residuals() const override { return {}; }

 private:
  const ExchangeRules rules_;
  Communicator& communicator_;
  const std::vector<NamedTensor>& parameters_;
  const Bucket bucket_;
  WindowPtr window_;
  std::vector<Tensor> members_, shard_, norms_;
  Work work_;
};

}  // namespace

std::unique_ptr<BucketExchange> make_direct_exchange(const ExchangeRules& rules,
                                                     Communicator& communicator,
                                                     const std::vector<NamedTensor>& parameters,
                                                     const Bucket& bucket) {
  return std::make_unique<Direct>(rules, communicator, parameters, bucket);
}

}  // namespace lockstep
