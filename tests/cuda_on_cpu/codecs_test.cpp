// The codecs' kernels against the CPU backend's, in five thread orders: the same bits, wherever the
// CPU promises bits. What a codec computes is tested in ../dist/codec_values_test.cpp.
#include <set>
#include <tuple>

#include "core/cuda/cuda_backend.h"
#include "tests/core/kernel_data.h"
#include "tests/cuda_on_cpu/orders.h"

namespace lockstep {
namespace {

using namespace test;

std::vector<uint32_t> bits_of(const std::vector<float>& x) {
  std::vector<uint32_t> bits;
  for (float v : x) bits.push_back(codec::bits_of(v));
  return bits;
}

// The same bytes on the wire, the same rest and the same decoded cells as the CPU's, in every
// order, whatever was in the wire's memory: of two runs that share a message and its tail, one with
// a rest in its own place and one without.
void expect_the_cpus_bits(const CellCodec& codec, const CodecRun& run, const Tensor& x) {
  const size_t place = place_bytes(codec, run);
  const auto trip = [&](Backend& k, uint8_t filler) {
    std::vector<uint8_t> memory(2 * capacity(codec, run) + 64, filler);
    uint8_t* message = memory.data() + (-reinterpret_cast<uintptr_t>(memory.data()) & 15);
    auto* wire = reinterpret_cast<std::byte*>(message);
    uint64_t used = 2 * place;
    const WireTail tail{wire, &used};
    std::vector<float> rest = x.to_vector<float>(), out(2 * rest.size(), 7.0f);
    k.encode(codec, run, rest.data(), wire, tail, rest.data());
    const uint64_t first_end = used;
    k.encode(codec, run, x.data<float>(), wire + place, tail, nullptr);
    EXPECT_EQ(used - first_end, first_end - 2 * place);
    EXPECT_LE(used, 2 * capacity(codec, run));
    const int64_t cut = run.cells() / 2;  // as one who decodes piece by piece
    float* again = out.data() + rest.size();
    k.decode(codec, run, wire, 0, cut, out.data());
    k.decode(codec, run, wire, cut, run.cells() - cut, out.data() + cut * cell_size);
    k.decode(codec, run, wire + place, 0, run.cells(), again);
    return std::tuple(std::vector<uint8_t>(message, message + used), bits_of(rest), bits_of(out));
  };
  const auto want = trip(cpu_backend(), 0);
  CudaBackend gpu(nullptr);
  for_each_order([&](int order) {
    EXPECT_EQ(trip(gpu, 0xff), want) << "codec " << codec.index() << ", " << run.elements
                                     << " elements, rows of " << run.row << ", order " << order;
  });
}

TEST(CudaCodecs, TheCpusBits) {
  const std::vector<CellCodec> codecs{codec::None({}),     codec::Bf16({}),    codec::Int8({}),
                                      codec::TopK({0.01}), codec::TopK({0.3}), codec::TopK({1.0}),
                                      codec::Rows({}),     codec::Sign({})};
  std::set<size_t> covered;
  for (const CellCodec& codec : codecs) covered.insert(codec.index());
  ASSERT_EQ(covered.size(), std::variant_size_v<CellCodec>) << "a codec without a row here";
#ifdef __SANITIZE_THREAD__
  const std::vector<int64_t> sizes{300};
#else
  const std::vector<int64_t> sizes{1, 15, 2 * cell_size + 1000};
#endif
  for (const CellCodec& codec : codecs)
    for (int64_t n : sizes)
      for (int64_t row : {1, 48, 5000}) {
        if (row != 48 && !std::holds_alternative<codec::Rows>(codec)) continue;
        Tensor x = random_tensor({n}, DType::f32, 1);
        float* values = x.data<float>();
        for (int64_t i = 0; i < n; ++i) {
          if (i / row % 3 == 1) values[i] = 0.0f;     // rows of zeros,
          if (i % 7 == 2) values[i] = values[i / 2];  // equal magnitudes,
          if (i == 12) values[i] = -0.0f;
        }
        expect_the_cpus_bits(codec, {n, 3 * cell_size, row}, x);
        if (n <= cell_size) continue;
        for (int64_t i = 0; i < cell_size; ++i) values[i] = 0.0f;  // a cell of zeros,
        values[cell_size + 4] = NAN;                               // one that must be seen
        expect_the_cpus_bits(codec, {n, 0, row}, x);
      }
}

TEST(CudaCodecs, MomentaAreTheCpus) {
  const int64_t n = 3001;
  const auto averaged = [&](Backend& k, bool from_zero) {
    const Tensor past = random_tensor({n}, DType::f32, 1);
    Tensor x = random_tensor({n}, DType::f32, 2);
    k.average(0.9f, from_zero ? nullptr : past.data<float>(), x.data<float>(), n);
    return x;
  };
  CudaBackend gpu(nullptr);
  for (const bool from_zero : {true, false})
    expect_near(
        averaged(gpu, from_zero), values(averaged(cpu_backend(), from_zero)),
        [](size_t) { return 0x1p-22; }, "momenta");
}

TEST(CudaCodecs, PowersHaveTheCpusBits) {
  const int64_t n = 3001;
  const auto trip = [&](Backend& k, bool divide) {
    std::vector<float> v = random_tensor({n}, DType::f32, 1).to_vector<float>();
    for (int64_t i = 0; i < n; ++i) v[i] = i % 3 == 0 ? 0.0f : v[i] * v[i] * 1e-9f;
    std::vector<float> x = random_tensor({n}, DType::f32, 2).to_vector<float>();
    x[5] = NAN;
    std::vector<uint8_t> powers(n);
    k.root_powers(v.data(), powers.data(), n);
    k.scale_by_powers(powers.data(), divide, x.data(), n);
    return std::pair(powers, bits_of(x));
  };
  CudaBackend gpu(nullptr);
  for (const bool divide : {true, false}) EXPECT_EQ(trip(gpu, divide), trip(cpu_backend(), divide));
}

}  // namespace
}  // namespace lockstep
