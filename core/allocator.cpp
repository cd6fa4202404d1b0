// The caching allocator. Read next: tensor.h.
#include "core/allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "core/error.h"
#include "core/free_memory.h"
#include "core/parallel.h"

namespace lockstep {

namespace {

thread_local Allocator* current_allocator = nullptr;
thread_local Category current_category = Category::activations;

constexpr size_t huge_page = size_t{2} << 20;

// Eight classes per power of two: at most 12.5 % of a block is lost to rounding.
size_t size_class(size_t bytes) {
  const size_t least = 64;
  if (bytes <= least) return least;
  const size_t step = std::max(least, std::bit_floor(bytes - 1) / 8);
  return (bytes + step - 1) / step * step;
}

// Makes the pages the process's own now, so that what is asked for next is compared with what is
// left then. By all threads, as loops will use it: pages lie with the processor that touches them.
void touch(std::byte* p, size_t bytes) {
  constexpr int64_t page = 4096;
  parallel_pieces(static_cast<int64_t>(bytes), huge_page, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += page) static_cast<volatile std::byte*>(p)[at] = {};
  });
}

class HostMemory : public MemorySource {
 public:
  void* allocate(size_t bytes) override {
    const size_t alignment = bytes >= huge_page ? huge_page : 64;
    const bool fits = bytes < huge_page || fits_memory(bytes);
    void* p = nullptr;
    if (fits) p = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (!p)
      fail(Exit::config,
           "[memory] no {} bytes: {}; a smaller train.micro_batch or model, train.recompute or a "
           "higher dist.zero_stage needs less",
           bytes,
           fits ? "the system refused them" : fmt::format("the system has {} left", free_memory()));
    // Fewer page faults at first touch and fewer TLB misses later; only a hint, so its result is
    // not checked.
    if (bytes >= huge_page) {
      madvise(p, bytes, MADV_HUGEPAGE);
      touch(static_cast<std::byte*>(p), bytes);
    }
    return p;
  }
  void release(void* p, size_t) override { std::free(p); }
};

}  // namespace

const char* name_of(Category c) {
  constexpr const char* names[] = {"parameters", "gradients", "optimizer", "activations",
                                   "buffers"};
  return names[static_cast<int>(c)];
}

int64_t MemoryStats::total() const {
  return std::accumulate(current.begin(), current.end(), int64_t{0});
}

std::string to_string(const MemoryStats& stats) {
  std::string text;
  for (int c = 0; c < category_count; ++c)
    text += fmt::format("{} {}, ", name_of(static_cast<Category>(c)), stats.current[c]);
  return text + fmt::format("held {} bytes", stats.held);
}

void MemorySource::read(void* to_host, const void* here, size_t bytes) {
  if (bytes > 0) std::memcpy(to_host, here, bytes);
}
void MemorySource::write(void* here, const void* from_host, size_t bytes) {
  if (bytes > 0) std::memcpy(here, from_host, bytes);
}
void MemorySource::zero(void* here, size_t bytes) {
  if (bytes > 0) std::memset(here, 0, bytes);
}

MemorySource& host_memory() {
  static HostMemory memory;
  return memory;
}

void Storage::release() {
  if (!data_) return;
  if (!owner_) allocator_->give(data_, bytes_);
  if (counted_) allocator_->count(-static_cast<int64_t>(bytes_), category_);
  data_ = nullptr;
  owner_.reset();
  counted_ = false;
}

void Storage::rebind() {
  check(!data_, "[storage] rebind of a bound storage of {} bytes; release it first", bytes_);
  if (bytes_ == 0) return;
  try {
    data_ = allocator_->take(bytes_);
  } catch (const Error& e) {
    throw Error(e.code(), fmt::format("{} (asked for {}; in use: {})", e.what(), name_of(category_),
                                      to_string(allocator_->stats())));
  }
  allocator_->count(static_cast<int64_t>(bytes_), category_);
  counted_ = true;
}

void Storage::rebind(void* data, std::shared_ptr<void> owner) {
  check(!data_, "[storage] rebind of a bound storage of {} bytes; release it first", bytes_);
  check(owner != nullptr, "[storage] borrowed memory needs an owner that keeps it alive");
  data_ = data;
  owner_ = std::move(owner);
}

Allocator::~Allocator() {
  release_cached();
}

std::shared_ptr<Storage> Allocator::allocate(size_t bytes, Category category) {
  std::shared_ptr<Storage> storage(new Storage(*this, bytes, category));
  storage->rebind();
  return storage;
}

std::shared_ptr<Storage> Allocator::adopt(void* data, size_t bytes, Category category,
                                          std::shared_ptr<void> owner) {
  std::shared_ptr<Storage> storage(new Storage(*this, bytes, category));
  storage->rebind(data, std::move(owner));
  count(static_cast<int64_t>(bytes), category);
  storage->counted_ = true;
  return storage;
}

void* Allocator::take(size_t bytes) {
  const size_t size = size_class(bytes);
  {
    std::lock_guard lock(mutex_);
    if (auto it = free_.find(size); it != free_.end() && !it->second.empty()) {
      void* p = it->second.back();
      it->second.pop_back();
      return p;
    }
  }
  void* p = nullptr;
  try {
    p = source_.allocate(size);
  } catch (const Error&) {  // cached blocks of other classes may be what is missing
    release_cached();
    p = source_.allocate(size);
  }
  std::lock_guard lock(mutex_);
  stats_.held += static_cast<int64_t>(size);
  stats_.system_allocations++;
  return p;
}

void Allocator::give(void* p, size_t bytes) {
  std::lock_guard lock(mutex_);
  free_[size_class(bytes)].push_back(p);
}

void Allocator::count(int64_t bytes, Category category) {
  std::lock_guard lock(mutex_);
  const int c = static_cast<int>(category);
  stats_.current[c] += bytes;
  stats_.peak[c] = std::max(stats_.peak[c], stats_.current[c]);
  stats_.total_peak = std::max(stats_.total_peak, stats_.total());
}

MemoryStats Allocator::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void Allocator::reset_peak() {
  std::lock_guard lock(mutex_);
  stats_.peak = stats_.current;
  stats_.total_peak = stats_.total();
}

void Allocator::release_cached() {
  std::lock_guard lock(mutex_);
  for (auto& [size, blocks] : free_) {
    for (void* p : blocks) source_.release(p, size);
    stats_.held -= static_cast<int64_t>(size * blocks.size());
  }
  free_.clear();
}

Allocator& Allocator::current() {
  // Never destroyed: storages of static lifetime may outlive any order of destruction.
  static Allocator* process_wide = new Allocator(host_memory());
  return current_allocator ? *current_allocator : *process_wide;
}

AllocatorScope::AllocatorScope(Allocator& allocator) : previous_(current_allocator) {
  current_allocator = &allocator;
}
AllocatorScope::~AllocatorScope() {
  current_allocator = previous_;
}

CategoryScope::CategoryScope(Category category) : previous_(current_category) {
  current_category = category;
}
CategoryScope::~CategoryScope() {
  current_category = previous_;
}
Category CategoryScope::current() {
  return current_category;
}

}  // namespace lockstep
