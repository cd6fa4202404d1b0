// The allocator's accounts and reuse, and storages that are released and bound again.
#include <gtest/gtest.h>

#include <cstring>

#include "core/tensor.h"
#include "tests/core/expect_error.h"

namespace lockstep {
namespace {

int64_t current(const Allocator& a, Category c) {
  return a.stats().current[static_cast<int>(c)];
}
int64_t peak(const Allocator& a, Category c) {
  return a.stats().peak[static_cast<int>(c)];
}

// Counts what is out, and refuses beyond a limit.
class LimitedMemory : public MemorySource {
 public:
  explicit LimitedMemory(size_t limit) : limit_(limit) {}
  void* allocate(size_t bytes) override {
    if (out_ + bytes > limit_) fail(Exit::restart, "[memory] refused {} bytes", bytes);
    out_ += bytes;
    return host_memory().allocate(bytes);
  }
  void release(void* p, size_t bytes) override {
    out_ -= bytes;
    host_memory().release(p, bytes);
  }
  size_t out() const { return out_; }

 private:
  size_t limit_, out_ = 0;
};

TEST(Allocator, CountsEveryCategoryAndItsPeak) {
  Allocator a(host_memory());
  AllocatorScope scope(a);
  EXPECT_EQ(CategoryScope::current(), Category::activations);
  Tensor x = Tensor::empty({100});
  {
    CategoryScope gradients(Category::gradients);
    Tensor g = Tensor::empty({10}, DType::f64);
    {
      CategoryScope buffers(Category::buffers);
      Tensor b = Tensor::empty({3}, DType::u8);
      EXPECT_EQ(current(a, Category::buffers), 3);
    }
    EXPECT_EQ(current(a, Category::gradients), 80);
    EXPECT_EQ(a.stats().total(), 480);
  }
  x = Tensor::empty({50}, DType::bf16);  // the old one is alive until it is replaced
  EXPECT_EQ(current(a, Category::activations), 100);
  EXPECT_EQ(peak(a, Category::activations), 500);
  EXPECT_EQ(current(a, Category::gradients), 0);
  EXPECT_EQ(peak(a, Category::gradients), 80);
  EXPECT_EQ(a.stats().total_peak, 500);
  a.reset_peak();
  EXPECT_EQ(peak(a, Category::gradients), 0);
  EXPECT_EQ(a.stats().total_peak, 100);
  EXPECT_STREQ(name_of(Category::optimizer), "optimizer");
}

TEST(Allocator, ReusesBlocksOfOneSizeClass) {
  Allocator a(host_memory());
  const void* first = nullptr;
  {
    const auto s = a.allocate(1000, Category::buffers);
    first = s->data();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
  }
  const auto s = a.allocate(1024, Category::buffers);  // 1000 was rounded up to this
  EXPECT_EQ(s->data(), first);
  EXPECT_EQ(a.stats().system_allocations, 1);
  const auto t = a.allocate(1025, Category::buffers);
  EXPECT_EQ(a.stats().system_allocations, 2);
}

TEST(Allocator, RoundsUpByAtMostAnEighth) {
  Allocator a(host_memory());
  for (size_t bytes : {size_t{1000}, size_t{4097}, size_t{100001}, size_t{5} << 20}) {
    const int64_t before = a.stats().held;
    const auto s = a.allocate(bytes, Category::buffers);
    const int64_t held = a.stats().held - before;
    EXPECT_GE(held, static_cast<int64_t>(bytes));
    EXPECT_LE(static_cast<double>(held), 1.126 * static_cast<double>(bytes));
  }
}

TEST(Allocator, ReturnsWhatIsCached) {
  LimitedMemory memory(1 << 20);
  Allocator a(memory);
  const auto kept = a.allocate(1 << 16, Category::buffers);
  { const auto cached = a.allocate(1 << 17, Category::buffers); }
  EXPECT_EQ(memory.out(), (1u << 16) + (1u << 17));
  a.release_cached();
  EXPECT_EQ(memory.out(), 1u << 16);
  EXPECT_EQ(a.stats().held, 1 << 16);
}

TEST(Allocator, ReturnsCachedBlocksBeforeItGivesUp) {
  LimitedMemory memory(1 << 20);
  Allocator a(memory);
  { const auto small = a.allocate(600 << 10, Category::buffers); }
  const auto large = a.allocate(1 << 20, Category::buffers);  // fits only without the cached block
  EXPECT_EQ(memory.out(), 1u << 20);
  EXPECT_ERROR(a.allocate(1, Category::buffers), Exit::restart, "[memory] refused 64 bytes");
  EXPECT_EQ(a.stats().held, 1 << 20);
  EXPECT_EQ(a.stats().total(), 1 << 20);
}

TEST(Allocator, HostMemoryRefusesTheImpossible) {
  EXPECT_ERROR(host_memory().allocate(size_t{1} << 62), Exit::config,
               "[memory] no 4611686018427387904 bytes: the system ");
}

TEST(Storage, IsReleasedAndBoundAgainUnderItsTensors) {
  Allocator a(host_memory());
  AllocatorScope scope(a);
  Tensor t = Tensor::zeros({4});
  const Tensor part = t.rows(2, 4);
  t.storage()->release();
  EXPECT_FALSE(t.storage()->bound());
  EXPECT_EQ(a.stats().total(), 0);
  EXPECT_ERROR(part.data<float>(), Exit::internal, "storage of f32[2] is released");
  t.storage()->release();  // nothing to release, nothing counted twice
  EXPECT_EQ(a.stats().total(), 0);
  t.storage()->rebind();
  EXPECT_EQ(a.stats().total(), 16);
  t.data<float>()[3] = 7;
  EXPECT_EQ(part.to_vector<float>()[1], 7);
  EXPECT_ERROR(t.storage()->rebind(), Exit::internal,
               "[storage] rebind of a bound storage of 16 bytes; release it first");
}

TEST(Storage, BorrowedMemoryIsKeptAliveAndNotCounted) {
  Allocator a(host_memory());
  AllocatorScope scope(a);
  Tensor t = Tensor::zeros({2});
  t.storage()->release();
  auto owner = std::make_shared<std::vector<float>>(std::vector<float>{1, 2});
  std::weak_ptr<std::vector<float>> watch = owner;
  EXPECT_ERROR(t.storage()->rebind(owner->data(), nullptr), Exit::internal,
               "[storage] borrowed memory needs an owner");
  t.storage()->rebind(owner->data(), owner);
  owner.reset();
  EXPECT_EQ(t.to_vector<float>(), (std::vector<float>{1, 2}));
  EXPECT_EQ(a.stats().total(), 0);
  EXPECT_FALSE(watch.expired());
  t.storage()->release();
  EXPECT_TRUE(watch.expired());
  EXPECT_EQ(a.stats().total(), 0);
}

TEST(Storage, AdoptedMemoryIsCountedButNeverReused) {
  Allocator a(host_memory());
  auto owner = std::make_shared<std::vector<float>>(100);
  {
    const auto s = a.adopt(owner->data(), 400, Category::parameters, owner);
    EXPECT_EQ(current(a, Category::parameters), 400);
    EXPECT_EQ(a.stats().held, 0);
  }
  EXPECT_EQ(a.stats().total(), 0);
  EXPECT_EQ(owner.use_count(), 1);
  const auto s = a.allocate(400, Category::buffers);
  EXPECT_NE(s->data(), owner->data());
}

TEST(Storage, OfNothingIsBound) {
  const Tensor t = Tensor::zeros({0, 3});
  EXPECT_TRUE(t.storage()->bound());
  EXPECT_EQ(t.to_vector<float>().size(), 0u);
}

}  // namespace
}  // namespace lockstep
