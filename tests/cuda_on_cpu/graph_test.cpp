// Recordings as CUDA graphs, on the pretended device: what they repeat, what they read anew, and
// the order in which kernels and the host's parts come, whatever order streams run in.
#include <cuda_runtime.h>

#include <set>

#include "core/cuda/open.h"
#include "core/step_buffer.h"
#include "examples/recorded_steps.h"
#include "tests/core/expect_error.h"
#include "tests/core/kernel_data.h"

extern "C" lockstep::Device* lockstep_open_cuda(int index, lockstep::Fp32Products products);

namespace lockstep {
namespace {

using namespace test;
using Floats = std::vector<float>;

// A device whose kernels this thread uses.
struct OnDevice {
  explicit OnDevice(uint64_t order) {
    cuda_on_cpu::streams = {.queued = true, .seed = order, .without = {}};
  }
  ~OnDevice() { cuda_on_cpu::streams = {}; }

  struct Owned {
    Owned() : device(lockstep_open_cuda(0, Fp32Products::exact)), other(device->open_lane()) {}
    std::unique_ptr<Device> device;
    std::unique_ptr<Lane> other;
  };
  Owned owned;
  Allocator memory{owned.device->memory()};
  AllocatorScope allocator{memory};
  BackendScope kernels{owned.device->backend()};

  Recorder& recorder() { return owned.device->recorder(); }
};

void add(const Tensor& x, const Tensor& sum) {
  backend().add(x.data<float>(), sum.data<float>(), x.numel());
}

TEST(CudaGraph, ValuesOfTheHostAreRepeatedAndMemoryIsRead) {
  for (uint64_t order = 1; order <= 10; ++order) {
    OnDevice gpu(order);
    float by_value = 1;
    Tensor in_memory = Tensor::empty({4}), sum = Tensor::zeros({4});
    in_memory.copy_from_host(Floats(4, 10).data());
    const auto body = [&] {
      Tensor x = Tensor::empty({4});
      backend().fill(x, by_value);
      add(x, sum);
      add(in_memory, sum);
    };
    body();
    const std::unique_ptr<Recording> recording = gpu.recorder().record(body);
    EXPECT_EQ(sum.to_vector<float>(), Floats(4, 22)) << "recording computes as well";
    by_value = 2;
    in_memory.copy_from_host(Floats(4, 100).data());
    recording->replay();
    recording->replay();
    EXPECT_EQ(sum.to_vector<float>(), Floats(4, 22 + 2 * 101)) << order;
  }
}

// By the step and the sample that it finds in memory.
TEST(CudaGraph, DropoutDrawsAnewInEachReplay) {
  OnDevice gpu(1);
  StepBuffer scalars;
  const DropoutKey key{.stream = 5, .scalars = &scalars.for_kernels()};
  Tensor ones = Tensor::empty({2, 100}), kept = Tensor::empty({2, 100});
  backend().fill(ones, 1.0f);
  const auto body = [&] { backend().dropout(ones, 0.5f, key, kept, false); };
  const auto drawn = [&](int32_t step, int64_t first_sample, const std::function<void()>& draw) {
    scalars.write({.step = step, .first_sample = first_sample});
    draw();
    return kept.to_vector<float>();
  };
  body();
  const std::unique_ptr<Recording> recording = gpu.recorder().record(body);
  const auto replay = [&] { recording->replay(); };
  std::set<Floats> different;
  const std::pair<int32_t, int64_t> places[] = {{1, 0}, {1, 2}, {2, 0}, {2, int64_t{1} << 40}};
  for (const auto& [step, first] : places) {
    const Floats now = drawn(step, first, replay);
    EXPECT_EQ(now, drawn(step, first, body));
    different.insert(now);
  }
  EXPECT_EQ(different.size(), 4u);
}

// What another stream needs is queued before it is told to wait for it, and what it makes is not
// used before.
TEST(CudaGraph, EventsStayBetweenTheKernelsTheyOrder) {
  for (uint64_t order = 1; order <= 20; ++order) {
    OnDevice gpu(order);
    Lane& other = *gpu.owned.other;
    Tensor x = Tensor::zeros({4}), y = Tensor::zeros({4}), one = Tensor::empty({4});
    one.copy_from_host(Floats(4, 1).data());
    int host = 0;
    EventPtr done;
    const auto body = [&] {
      add(one, x);  // x += 1
      repeat_between_kernels([&] {
        other.backend().stream().wait(backend().stream().record());
        other.backend().add(x.data<float>(), y.data<float>(), 4);  // y += x
        done = other.backend().stream().record();
      });
      repeat_on_host([&] {
        ++host;
        backend().stream().wait(done);
      });
      add(y, x);  // x += y
    };
    body();
    const std::unique_ptr<Recording> recording = gpu.recorder().record(body);
    for (int i = 0; i < 3; ++i) recording->replay();
    float want_x = 0, want_y = 0;
    for (int i = 0; i < 5; ++i) want_y += ++want_x, want_x += want_y;
    EXPECT_EQ(x.to_vector<float>(), Floats(4, want_x)) << order;
    EXPECT_EQ(y.to_vector<float>(), Floats(4, want_y)) << order;
    EXPECT_EQ(host, 5);
  }
}

TEST(CudaGraph, AnErrorLeavesTheStreamAsItWas) {
  OnDevice gpu(1);
  Tensor one = Tensor::empty({4}), sum = Tensor::zeros({4});
  backend().fill(one, 1.0f);
  EXPECT_ERROR(gpu.recorder().record([&] {
    add(one, sum);
    fail(Exit::data, "in the middle");
  }),
               Exit::data, "in the middle");
  EXPECT_ERROR(gpu.recorder().record([&] { gpu.recorder().record([] {}); }), Exit::internal,
               "[cuda graph] a recording within a recording");
  // Waiting for the device is what no graph can hold.
  EXPECT_ERROR(gpu.recorder().record([&] { sum.to_vector<float>(); }), Exit::internal,
               "cudaStreamSynchronize failed: operation not permitted when stream is capturing");
  gpu.recorder().record([&] { add(one, sum); })->replay();
  EXPECT_EQ(sum.to_vector<float>(), Floats(4, 2));
}

TEST(CudaGraph, StepsAreRecordedAfterTwoAndThenReplayed) {
  OnDevice gpu(1);
  RecordedSteps steps(gpu.recorder(), 1, 4);
  Tensor seen = Tensor::zeros({4});
  int calls = 0;
  const auto compute = [&](const Tensor& tokens, const Tensor&) {
    ++calls;
    const Tensor ids = Tensor::over(tokens.storage(), 0, {4}, DType::f32);  // their bits
    add(ids, seen);
    const Tensor loss = Tensor::empty({1});
    backend().move(seen.raw(), loss.raw(), sizeof(float));
    return loss;
  };
  for (int i = 1; i <= 6; ++i) {
    const MicroStep micro{.step = i};
    EXPECT_EQ(steps.replays(micro), i > 3);
    Batch batch;
    batch.x.assign(4, std::bit_cast<int32_t>(static_cast<float>(i)));
    batch.y.assign(4, 0);
    EXPECT_EQ(steps.run(micro, batch, compute).item<float>(), static_cast<float>(i * (i + 1) / 2));
  }
  EXPECT_EQ(calls, 3);
}

TEST(CudaGraph, AStepThatNeedsMoreMemoryEachTimeIsNotRecorded) {
  OnDevice gpu(1);
  RecordedSteps steps(gpu.recorder(), 1, 4);
  Batch batch;
  batch.x.assign(4, 0), batch.y.assign(4, 0);
  std::vector<Tensor> kept;
  const auto compute = [&](const Tensor&, const Tensor&) {
    kept.push_back(Tensor::empty({1}));
    backend().fill(kept.back(), 0.0f);
    return kept.back();
  };
  for (int i = 1; i <= 2; ++i) steps.run({.step = i}, batch, compute);
  EXPECT_ERROR(steps.run({.step = 3}, batch, compute), Exit::internal,
               "[train.cuda_graph] the micro-step asked the device 1 times for memory while it was "
               "recorded; after two runs of the same shape none is right");
  kept.clear();
}

}  // namespace
}  // namespace lockstep
