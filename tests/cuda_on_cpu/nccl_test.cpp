// The communicator of devices over NCCL's transport, both as they are, on the fake NCCL: whose sums
// they are, in which order, and by which of NCCL's calls. Ranks are threads with a device each.
#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <cstring>
#include <numeric>
#include <random>

#include "core/backend.h"
#include "core/cuda/open.h"
#include "core/tensor.h"
#include "dist/device_communicator.h"
#include "dist/local.h"
#include "dist/memory.h"
#include "dist/nccl/open.h"
#include "tests/dist/given_gradients.h"

extern "C" lockstep::Device* lockstep_open_cuda(int index, lockstep::Fp32Products products);
extern "C" lockstep::DeviceTransport* lockstep_open_nccl(lockstep::Communicator& host,
                                                         lockstep::Lane& lane,
                                                         const lockstep::TransportOptions& options,
                                                         lockstep::NcclReduce reduce);

namespace lockstep {
namespace {

using Floats = std::vector<float>;

void on_devices(int ranks, NcclReduce reduce, const std::function<void(Communicator&)>& body,
                int ranks_per_host = 0) {
  cuda_on_cpu::device.count = ranks;
  cuda_on_cpu::streams = {.queued = true, .seed = 1, .without = {}};
  const TransportOptions options{.timeout_s = 20, .ranks_per_host = ranks_per_host};
  run_local(ranks, options, [&](Communicator& host) {
    const std::unique_ptr<Device> device(lockstep_open_cuda(host.rank(), Fp32Products::exact));
    const std::unique_ptr<Lane> lane = device->open_lane();
    Allocator allocator(device->memory());
    const AllocatorScope memory(allocator);
    const BackendScope kernels(device->backend());
    DeviceCommunicator communicator(
        host, *device, *lane,
        std::unique_ptr<DeviceTransport>(lockstep_open_nccl(host, *lane, options, reduce)));
    body(communicator);
    communicator.barrier();
  });
  cuda_on_cpu::streams = {};
  cuda_on_cpu::device = {};
}

// Of very different sizes, so that the order of a sum shows.
Floats given(int rank, size_t n) {
  std::mt19937 random(static_cast<uint32_t>(rank) + 1);
  Floats x(n);
  for (float& v : x)
    v = std::ldexp(static_cast<float>(random()) - 0x1p31f, static_cast<int>(random() % 12));
  return x;
}

// What dist promises, and what the fake NCCL does.
Floats tree_of_four(const std::vector<Floats>& x) {
  Floats sum(x[0].size());
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = (x[0][i] + x[1][i]) + (x[2][i] + x[3][i]);
  return sum;
}
Floats from_the_last(const std::vector<Floats>& x) {
  Floats sum = x.back();
  for (size_t r = x.size() - 1; r-- > 0;)
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += x[r][i];
  return sum;
}

enum class Operation { exchange, all_reduce };

// Every rank's window when the sums are there; of an exchange, each rank's own part of it counts.
std::vector<Floats> sums(const std::vector<size_t>& floats, NcclReduce reduce, Operation operation,
                         bool may_sum = true, int ranks_per_host = 0) {
  const size_t total = std::accumulate(floats.begin(), floats.end(), size_t{0});
  std::vector<size_t> bytes;
  for (size_t n : floats) bytes.push_back(n * sizeof(float));
  std::vector<Floats> result(floats.size(), Floats(total));
  cuda_on_cpu::nccl_sums.reduce_scatter = cuda_on_cpu::nccl_sums.reduce = 0;
  cuda_on_cpu::nccl_sums.all_reduce = 0;
  const auto sum_on = [&](Communicator& c) {
    const WindowPtr window = c.window("sums", bytes);
    window->fold_with(sum_floats);
    if (may_sum) window->let_transport_sum();
    backend().stream().synchronize();  // it has been zeroed
    const Floats mine = given(c.rank(), total);
    std::memcpy(window->mine().data(), mine.data(), window->bytes());
    const Work work = operation == Operation::exchange ? reduce_scatter_floats(c, window)
                                                       : all_reduce_floats(c, window);
    work.wait();
    backend().stream().synchronize();
    std::memcpy(result[c.rank()].data(), window->mine().data(), window->bytes());
    size_t sent = 0;
    for (int p = 0; p < c.size(); ++p)
      if (p != c.rank())
        sent += bytes[p] + (operation == Operation::exchange ? 0 : bytes[c.rank()]);
    EXPECT_EQ(work.traffic().to_ranks, sent);
  };
  on_devices(static_cast<int>(floats.size()), reduce, sum_on, ranks_per_host);
  return result;
}

std::vector<Floats> all_given(const std::vector<size_t>& floats) {
  std::vector<Floats> x;
  for (size_t r = 0; r < floats.size(); ++r)
    x.push_back(given(static_cast<int>(r), std::accumulate(floats.begin(), floats.end(), 0ul)));
  return x;
}

// Each rank's part of `whole` is in its window.
void expect_parts(const std::vector<Floats>& windows, const Floats& whole,
                  const std::vector<size_t>& floats) {
  size_t at = 0;
  for (size_t r = 0; r < floats.size(); at += floats[r++])
    for (size_t i = at; i < at + floats[r]; ++i)
      ASSERT_EQ(windows[r][i], whole[i]) << "rank " << r << ", element " << i;
}

const std::vector<size_t> alike{1000, 1000, 1000, 1000}, uneven{1000, 0, 1234, 17};

TEST(NcclReduceTest, OwnSumsAreInTheOrderOfTheRanks) {
  for (const auto& floats : {alike, uneven})
    expect_parts(sums(floats, NcclReduce::own, Operation::exchange),
                 tree_of_four(all_given(floats)), floats);
  const auto& calls = cuda_on_cpu::nccl_sums;
  EXPECT_EQ(calls.reduce_scatter + calls.reduce + calls.all_reduce, 0);
}

TEST(NcclReduceTest, NativeSumsAreNccls) {
  const auto& calls = cuda_on_cpu::nccl_sums;
  ASSERT_NE(from_the_last(all_given(alike)), tree_of_four(all_given(alike)));
  expect_parts(sums(alike, NcclReduce::native, Operation::exchange),
               from_the_last(all_given(alike)), alike);
  EXPECT_EQ(calls.reduce_scatter.load(), 4);
  EXPECT_EQ(calls.reduce.load(), 0);
  expect_parts(sums(uneven, NcclReduce::native, Operation::exchange),
               from_the_last(all_given(uneven)), uneven);
  EXPECT_EQ(calls.reduce_scatter.load(), 0);
  EXPECT_EQ(calls.reduce.load(), 4 * 3);  // nobody's part is empty but one
  for (const auto& floats : {alike, uneven}) {
    const Floats expected = from_the_last(all_given(floats));
    for (const Floats& window : sums(floats, NcclReduce::native, Operation::all_reduce))
      EXPECT_EQ(window, expected);
    EXPECT_EQ(calls.all_reduce.load(), 4);
  }
}

// A codec's messages, for one.
TEST(NcclReduceTest, WhatIsNotSaidToBeFloatsIsLeftToTheReaders) {
  expect_parts(sums(alike, NcclReduce::native, Operation::exchange, false),
               tree_of_four(all_given(alike)), alike);
}

// How many bytes of a part are used is written by its rank's stream, and different everywhere; as
// many travel, and the number before them.
TEST(NcclTold, AsManyBytesTravelAsTheDeviceWrote) {
  on_devices(4, NcclReduce::own, [](Communicator& c) {
    constexpr size_t room = 4096;
    const auto message = [](int rank, int part) {
      const uint64_t used = 8 + static_cast<uint64_t>(101 * rank + 17 * part);
      std::vector<uint8_t> bytes(used, static_cast<uint8_t>(16 * rank + part + 1));
      std::memcpy(bytes.data(), &used, sizeof used);
      return bytes;
    };
    const WindowPtr window = c.window("told", std::vector<size_t>(c.size(), room));
    Tensor seen = Tensor::empty({static_cast<int64_t>(room) * c.size()}, DType::u8);
    const Reader reader = [&](std::span<const ByteView> views) {
      for (int r = 0; r < c.size(); ++r)
        backend().move(views[r].data(), seen.data<uint8_t>() + room * r, room);
    };
    // part_of(r): the part that rank r showed.
    const auto expect_seen = [&](const Work& work, const std::function<int(int)>& part_of) {
      work.wait();
      const std::vector<uint8_t> all = seen.to_vector<uint8_t>();
      for (int r = 0; r < c.size(); ++r) {
        const std::vector<uint8_t> want = message(r, part_of(r));
        EXPECT_EQ(std::memcmp(all.data() + room * r, want.data(), want.size()), 0) << r;
      }
    };
    const int me = c.rank();
    size_t sent = 0;
    for (int p = 0; p < c.size(); ++p) {
      const std::vector<uint8_t> mine = message(me, p);
      Allocator::current().memory().write(window->part(p).data(), mine.data(), mine.size());
      if (p != me) sent += 8 + mine.size();
    }
    const Work exchange = c.exchange(window, reader, std::vector<size_t>(c.size(), told_by_part));
    expect_seen(exchange, [me](int) { return me; });
    EXPECT_EQ(exchange.traffic().to_ranks, sent);
    const Work gather = c.gather(window, reader, told_by_part);
    expect_seen(gather, [](int r) { return r; });
    EXPECT_EQ(gather.traffic().to_ranks, 3 * (8 + message(me, me).size()));
  });
}

// Whatever the hosts; the last may be short.
TEST(NcclReduceTest, SumsWithinHostsHaveTheBitsOfTheTree) {
  for (const size_t ranks : {3, 4})
    for (const auto& all : {alike, uneven})
      for (const Operation operation : {Operation::exchange, Operation::all_reduce}) {
        const std::vector<size_t> floats(all.begin(), all.begin() + ranks);
        const std::vector<Floats> x = all_given(floats);
        Floats expected(x[0].size());
        for (size_t i = 0; i < expected.size(); ++i)
          expected[i] = (x[0][i] + x[1][i]) + (ranks == 4 ? x[2][i] + x[3][i] : x[2][i]);
        expect_parts(sums(floats, NcclReduce::own, operation, true, 2), expected, floats);
      }
}

// On two hosts of two ranks: a sum of one host's two for a part of the other goes there once, and
// so does what is for all. The memory formula and the bound of a step (dist/memory.h) have the same
// figures.
TEST(NcclTraffic, IsCountedByRankAndByHost) {
  on_devices(
      4, NcclReduce::own,
      [](Communicator& c) {
        DistConfig config;
        config.backend = "nccl";
        config.bucket_mb = 0.05;
        constexpr int64_t rows = 4 * 3 * cell_size / 64, bytes = rows * 64 * sizeof(float);
        std::vector<NamedTensor> parameters;
        for (const char* name : {"a", "b"})
          parameters.push_back({name, Tensor::zeros({rows, 64}).set_requires_grad(true)});
        const auto exchange = make_data_parallel(config, c, parameters);
        exchange->begin_micro_step({});
        give(parameters, all_of(parameters));
        const GradientReport report = exchange->finish();
        EXPECT_EQ(report.wire_bytes, 2 * bytes * (3 + 3) / 4);
        EXPECT_EQ(report.host_bytes, 2 * bytes * (1 + 1) / 4);
        const MemoryModel model{.parameters = parameters, .unit_of = {}, .early = {}};
        for (double b : bucket_link_bytes(config, model, c.topology(), SumOrder::same_world, 1))
          EXPECT_EQ(b, 2 * bytes * (1 + 1) / 4) << "of a host's two ranks";
        const MemoryBytes plan =
            memory_plan(config, model, c.topology(), SumOrder::same_world, 1, 8);
        EXPECT_EQ(plan.arrivals, static_cast<double>(bytes) * 3 / 4);
        EXPECT_EQ(plan.arrivals, static_cast<double>(c.arrival_bytes()));
      },
      2);
}

// The host only queues; how long it took is what the stream says.
TEST(NcclTimes, AreThoseOfTheStream) {
  setenv("CUDA_ON_CPU_NCCL_MS", "50", 1);
  on_devices(2, NcclReduce::own, [](Communicator& c) {
    const std::vector<size_t> bytes(2, 4000);
    const WindowPtr window = c.window("timed", bytes);
    const Work work = all_reduce_floats(c, window);  // an exchange and a gather
    work.wait();
    backend().stream().synchronize();
    EXPECT_TRUE(work.timed());
    EXPECT_GE(work.timing().finished - work.timing().arrived, std::chrono::milliseconds(100));
    EXPECT_LE(work.timing().finished, std::chrono::steady_clock::now());
  });
  unsetenv("CUDA_ON_CPU_NCCL_MS");
}

TEST(NcclReduceTest, OneRankSumsToo) {
  const Floats expected = given(0, 77);
  EXPECT_EQ(sums({77}, NcclReduce::native, Operation::exchange)[0], expected);
  EXPECT_EQ(sums({77}, NcclReduce::native, Operation::all_reduce)[0], expected);
}

}  // namespace
}  // namespace lockstep
