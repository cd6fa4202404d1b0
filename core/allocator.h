// Memory: a caching allocator that accounts every byte to a category, and Storage, the handle that
// tensors share. A storage can be released and bound again while tensors keep pointing at it: that
// is how a parameter is freed and gathered when parameters are sharded. Read next: tensor.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace lockstep {

// What memory is for; every allocation has exactly one.
enum class Category : uint8_t { parameters, gradients, optimizer, activations, buffers };
constexpr int category_count = 5;
const char* name_of(Category c);

struct MemoryStats {
  std::array<int64_t, category_count> current{};  // bytes asked for and alive
  std::array<int64_t, category_count> peak{};     // their maxima, each on its own
  int64_t total_peak = 0;                         // maximum of the sum
  int64_t held = 0;                // bytes taken from the system, cached ones included
  int64_t system_allocations = 0;  // calls that went to the system, ever

  int64_t total() const;
};
// "parameters 1024, gradients 0, .., held 4096 bytes": what is in use, for messages.
std::string to_string(const MemoryStats& stats);

// Where an allocator takes its memory from: the host, or a device. The host reads and writes it
// through this interface alone; the defaults are those of memory that is the host's.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  // 64-byte aligned or better; Error naming bytes if it fails.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* p, size_t bytes) = 0;

  // Whether the host may follow pointers into it.
  virtual bool on_host() const { return true; }
  // On a device these take their turn among its kernels. read returns when the host has the bytes,
  // write when `from` may change again; neither waits for more than that.
  virtual void read(void* to_host, const void* here, size_t bytes);
  virtual void write(void* here, const void* from_host, size_t bytes);
  virtual void zero(void* here, size_t bytes);
};
MemorySource& host_memory();

class Allocator;

class Storage {
 public:
  ~Storage() { release(); }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  // Null while released. Read it at the time of use, never keep it.
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  Category category() const { return category_; }
  MemorySource& memory() const;  // that the bytes lie in, borrowed ones too
  bool bound() const { return data_ != nullptr || bytes_ == 0; }

  void release();  // gives the memory back; the handle stays
  void rebind();   // takes memory of the same size again; contents undefined
  // Uses memory that lives elsewhere (a bucket, shared memory), kept alive by `owner`, not counted
  // again.
  void rebind(void* data, std::shared_ptr<void> owner);

 private:
  friend class Allocator;
  Storage(Allocator& allocator, size_t bytes, Category category)
      : allocator_(&allocator), bytes_(bytes), category_(category) {}

  Allocator* allocator_;
  void* data_ = nullptr;
  size_t bytes_;
  Category category_;
  std::shared_ptr<void> owner_;  // set when the memory lives elsewhere
  bool counted_ = false;
};

// One per rank. Blocks are rounded up to a size class and kept for reuse, so that after the first
// steps nothing is asked from the system. Thread-safe. Outlives its storages.
class Allocator {
 public:
  explicit Allocator(MemorySource& source) : source_(source) {}
  ~Allocator();
  Allocator(const Allocator&) = delete;

  std::shared_ptr<Storage> allocate(size_t bytes, Category category);
  // Memory taken elsewhere (a shared window) that should stand in this allocator's figures.
  std::shared_ptr<Storage> adopt(void* data, size_t bytes, Category category,
                                 std::shared_ptr<void> owner);

  MemorySource& memory() const { return source_; }
  MemoryStats stats() const;
  void reset_peak();
  void release_cached();  // returns what is cached to the system

  // The allocator of this thread's rank; a process-wide host allocator until a scope says
  // otherwise.
  static Allocator& current();

 private:
  friend class Storage;
  void* take(size_t bytes);
  void give(void* p, size_t bytes);
  void count(int64_t bytes, Category category);

  MemorySource& source_;
  mutable std::mutex mutex_;
  std::map<size_t, std::vector<void*>> free_;  // by size class
  MemoryStats stats_;
};

inline MemorySource& Storage::memory() const {
  return allocator_->memory();
}

// The calling thread allocates from `allocator` while the scope lives.
class AllocatorScope {
 public:
  explicit AllocatorScope(Allocator& allocator);
  ~AllocatorScope();
  AllocatorScope(const AllocatorScope&) = delete;

 private:
  Allocator* previous_;
};

// New tensors of the calling thread belong to `category` while the scope lives (default:
// activations).
class CategoryScope {
 public:
  explicit CategoryScope(Category category);
  ~CategoryScope();
  CategoryScope(const CategoryScope&) = delete;
  static Category current();

 private:
  Category previous_;
};

}  // namespace lockstep
