// Recording a micro-step, and replaying it. Read next: ranks.h.
#include "examples/recorded_steps.h"

#include "core/backend.h"

namespace lockstep {

namespace {
// Before a micro-step is recorded: the first finds memory and libraries' plans, the second shows
// that no more is needed.
constexpr int kRunsBefore = 2;
}  // namespace

RecordedSteps::RecordedSteps(Recorder& recorder, int64_t rows, int64_t seq_len)
    : recorder_(recorder),
      memory_(Allocator::current().memory()),
      tokens_(Tensor::empty({rows, seq_len}, DType::i32)),
      targets_(Tensor::empty({rows, seq_len}, DType::i32)),
      loss_(Tensor::empty({1})) {}

bool RecordedSteps::replays(const MicroStep& micro) const {
  const auto kind = kinds_.find(key(micro));
  return kind != kinds_.end() && kind->second.recording;
}

Tensor RecordedSteps::run(const MicroStep& micro, const Batch& batch, const Compute& compute) {
  tokens_.copy_from_host(batch.x.data());
  targets_.copy_from_host(batch.y.data());
  Kind& kind = kinds_[key(micro)];
  const auto body = [&] {
    const Tensor loss = compute(tokens_, targets_);
    backend().move(loss.raw(), loss_.raw(), loss_.bytes());
  };
  if (kind.recording)
    kind.recording->replay();
  else
    record(kind, body);
  // The next replay writes there again.
  const Tensor mine = Tensor::empty(loss_.shape());
  backend().move(loss_.raw(), mine.raw(), mine.bytes());
  return mine;
}

void RecordedSteps::record(Kind& kind, const std::function<void()>& body) {
  const AllocatorScope apart(memory_);
  if (kind.runs++ < kRunsBefore) return body();
  const int64_t before = memory_.stats().system_allocations;
  kind.recording = recorder_.record(body);
  const int64_t more = memory_.stats().system_allocations - before;
  check(more == 0,
        "[train.cuda_graph] the micro-step asked the device {} times for memory while it was "
        "recorded; after two runs of the same shape none is right",
        more);
}

}  // namespace lockstep
