// Runs CUDA kernels on one OS thread. Blocks run one after the other. A CUDA thread is a plain call
// until it blocks in a barrier or shuffle; then the next one starts on another stack, so only
// threads that wait cost a stack. Who runs next is Options::order; in random order whoever releases
// a barrier yields too. Under ThreadSanitizer every CUDA thread is a fiber of the detector, ordered
// only by what orders memory in CUDA (barriers, __syncwarp, kernel start and end; not shuffles), so
// that races are found although nothing runs at the same time. This file is compiled without that
// instrumentation: only kernels are watched.
#include <sys/mman.h>

#include <cuda_runtime.h>

#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#ifdef CUDA_ON_CPU_TSAN
#include <sanitizer/tsan_interface.h>
#else
#define __tsan_acquire(p) static_cast<void>(p)
#define __tsan_release(p) static_cast<void>(p)
#endif
#ifdef CUDA_ON_CPU_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace cuda_on_cpu {

namespace {

constexpr int max_threads = 1024, max_warps = 32, max_masks = 4;

// A set of thread ids without memmove, which TSan would intercept.
struct IdList {
  int ids[max_threads], n = 0;
  void push(int id) { ids[n++] = id; }
  int pop() { return ids[--n]; }
  int take(int at) {
    const int id = ids[at];
    ids[at] = ids[--n];
    return id;
  }
};

// Lanes of one mask that meet. Two generations of slots suffice: nobody can be two ahead.
struct Meeting {
  uint32_t mask = 0, arrived = 0, generation = 0, present[2] = {};
  int line = 0;
  IdList waiting;
  alignas(16) unsigned char slot[2][32][16];
};
struct Warp {
  Meeting meetings[max_masks];
  int n = 0;
  uint32_t lanes = 0, exited = 0;
};
struct Thread {
  uint3 index;
  int stack;  // of the fiber it runs on
  bool done;
  int line;  // where it waits
  const char* at;
  int fiber;
};
struct Stack {
  void* pointer;
  char* base;
  void* fake;
  size_t mapped;
};
struct Shared {
  const void* key;
  char* memory;
};

Thread threads[max_threads];
Warp warps[max_warps];
std::deque<Stack> stacks;
IdList idle, unstarted, ready, at_barrier;
int live, count, current, current_stack, barrier_line;
uint32_t barrier_generation;

[[maybe_unused]] void *main_pointer, *main_fake, *main_fiber;
#ifdef CUDA_ON_CPU_ASAN
const void* main_base;
size_t main_size;
int left;  // the stack that was left last
#endif
[[maybe_unused]] void* fibers[max_threads];  // the detector's, one per CUDA thread

void (*body)(void*);
void* argument;
char barrier_tag[2], start_tag, end_tag;  // addresses that order memory for the detector
// SplitMix64. Not the standard library's engine: the linker might take the copy of it that another
// file has compiled for the detector, which would then watch the scheduler.
struct Engine {
  uint64_t state = 0;
  void seed(uint64_t s) { state = s; }
  uint64_t operator()() {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
} engine;
std::string error;
std::vector<Shared> shared_arrays;  // of this block
constexpr std::align_val_t shared_alignment{128};
struct FreeShared {
  void operator()(char* p) const { operator delete[](p, shared_alignment); }
};
using SharedMemory = std::unique_ptr<char[], FreeShared>;
std::vector<SharedMemory> memories;  // of this block; for the detector of the whole grid

// Exactly as large as asked, so that AddressSanitizer sees overruns, and full of NaN.
char* allocate_shared(size_t bytes) {
  memories.emplace_back(static_cast<char*>(operator new[](bytes, shared_alignment)));
  char* p = memories.back().get();
  for (size_t i = 0; i < bytes; ++i) static_cast<volatile char*>(p)[i] = static_cast<char>(0xff);
  return p;
}

extern "C" void cuda_on_cpu_switch(void** save, void* to);

#ifdef CUDA_ON_CPU_ASAN
// Tells the detector that another stack runs now, and learns where the launcher's is: it may be
// another one for every grid, while the others stay.
void arrive(void* fake) {
  const void* base;
  size_t size;
  __sanitizer_finish_switch_fiber(fake, &base, &size);
  if (left < 0) main_base = base, main_size = size;
}
#endif

// Continues on another stack; -1 is the launcher's.
void jump(int to) {
  const int from = current_stack;
#ifdef CUDA_ON_CPU_TSAN
  __tsan_switch_to_fiber(to < 0 ? main_fiber : fibers[to], 1);
#endif
  if (from == to) return;
  void** save = from < 0 ? &main_pointer : &stacks[from].pointer;
  void* pointer = to < 0 ? main_pointer : stacks[to].pointer;
  current_stack = to;
#ifdef CUDA_ON_CPU_ASAN
  void** fake = from < 0 ? &main_fake : &stacks[from].fake;
  left = from;
  if (to < 0)
    __sanitizer_start_switch_fiber(fake, main_base, main_size);
  else
    __sanitizer_start_switch_fiber(fake, stacks[to].base, options.stack);
#endif
  cuda_on_cpu_switch(save, pointer);
#ifdef CUDA_ON_CPU_ASAN
  arrive(*fake);
#endif
}

void make_current(int id) {
  current = id;
  threadIdx = threads[id].index;
  lane = id % 32;
}

[[noreturn]] void stop(const std::string& message) {
  error = message + " (block " + std::to_string(blockIdx.x) + "," + std::to_string(blockIdx.y) +
          "," + std::to_string(blockIdx.z) + " thread " + std::to_string(current) + ")";
  jump(-1);
  std::abort();
}

// What runs next, or -1; `fresh` if it has not run yet.
int pick(bool& fresh) {
  const int u = unstarted.n, r = ready.n;
  if (u + r == 0) return -1;
  if (options.order == Order::random) {
    const int k = static_cast<int>(engine() % static_cast<unsigned>(u + r));
    fresh = k < u;
    return fresh ? unstarted.take(k) : ready.take(k - u);
  }
  fresh = u > 0;
  return fresh ? unstarted.pop() : ready.pop();
}

void stack_main();

int add_stack() {
  constexpr size_t guard = 4096;
  Stack s{};
  s.mapped = options.stack + guard;
  void* memory = mmap(nullptr, s.mapped, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no memory for a fiber's stack");
  mprotect(memory, guard, PROT_NONE);
  s.base = static_cast<char*>(memory) + guard;
  void** top = reinterpret_cast<void**>(s.base + options.stack - 64);
  *--top = nullptr;  // keeps the stack aligned as after a call
  *--top = reinterpret_cast<void*>(stack_main);
  for (int registers = 0; registers < 6; ++registers) *--top = nullptr;
  s.pointer = top;
  stacks.push_back(s);
  return static_cast<int>(stacks.size()) - 1;
}

void free_stacks() {
  for (const Stack& s : stacks) munmap(s.base - (s.mapped - options.stack), s.mapped);
  stacks.clear();
  idle.n = 0;
#ifdef CUDA_ON_CPU_TSAN
  for (void*& fiber : fibers) {
    if (fiber) __tsan_destroy_fiber(fiber);
    fiber = nullptr;
  }
#endif
}

int stack_for([[maybe_unused]] int id) {
#ifdef CUDA_ON_CPU_TSAN
  return threads[id].fiber;
#else
  return idle.n > 0 ? idle.pop() : add_stack();
#endif
}

// Leaves the running thread, which is done or waits, for another one.
void run_next([[maybe_unused]] bool finished) {
  bool fresh = false;
  [[maybe_unused]] const int self = current_stack;
  const int id = pick(fresh);
  if (id < 0 && live > 0) {
    std::string message = "deadlock:";
    int shown = 0;
    for (int i = 0; i < count; ++i)
      if (!threads[i].done && shown++ < 4)
        message += " thread " + std::to_string(i) + " waits in " + threads[i].at + " at line " +
                   std::to_string(threads[i].line) + ";";
    stop(message);
  }
#ifndef CUDA_ON_CPU_TSAN
  if (finished) idle.push(self);
#endif
  if (id < 0) return jump(-1);
  make_current(id);
  if (fresh) threads[id].stack = stack_for(id);
  jump(threads[id].stack);
}

void wait_here(const char* at, int line) {
  const int me = current;
  threads[me].at = at;
  threads[me].line = line;
  run_next(false);
  make_current(me);
}

void wake(IdList& list) {
  for (int i = 0; i < list.n; ++i) ready.push(list.ids[i]);
  list.n = 0;
}

// After releasing others: in random order they may run first.
void go_on(const char* at, int line) {
  if (options.order != Order::random) return;
  ready.push(current);
  wait_here(at, line);
}

void release_if_complete(Meeting& m, uint32_t lanes) {
  if (!m.arrived || m.arrived != (m.mask & lanes)) return;
  m.present[m.generation & 1] = m.arrived;
  m.arrived = 0;
  ++m.generation;
  wake(m.waiting);
}

void finish_thread() {
  Warp& warp = warps[current / 32];
  threads[current].done = true;
  --live;
  warp.exited |= 1u << lane;
  if (at_barrier.n > 0) {
    if (options.strict_exit)
      stop("a thread ends while others wait in __syncthreads at line " +
           std::to_string(barrier_line));
    if (at_barrier.n == live) {
      ++barrier_generation;
      wake(at_barrier);
    }
  }
  for (int i = 0; i < warp.n; ++i) release_if_complete(warp.meetings[i], warp.lanes & ~warp.exited);
}

void stack_main() {
#ifdef CUDA_ON_CPU_ASAN
  arrive(nullptr);
#endif
  for (;;) {
    __tsan_acquire(&start_tag);
    body(argument);
    __tsan_release(&end_tag);
    finish_thread();
    run_next(true);  // comes back here when this stack gets another thread
  }
}

Meeting& meeting_for(Warp& warp, uint32_t mask) {
  for (int i = 0; i < warp.n; ++i)
    if (warp.meetings[i].mask == mask) return warp.meetings[i];
  for (int i = 0; i < max_masks; ++i) {
    Meeting& m = warp.meetings[i];
    if (i < warp.n && m.arrived) continue;
    if (i == warp.n) ++warp.n;
    m.mask = mask;
    return m;
  }
  stop("more than four masks of one warp in flight");
}

void check_limits(dim3 grid, dim3 block, size_t shared_bytes) {
  const auto fail = [](const std::string& what) { throw std::runtime_error("launch: " + what); };
  const uint64_t n = uint64_t{block.x} * block.y * block.z;
  if (n < 1 || n > max_threads || block.z > 64) fail("blocks of " + std::to_string(n) + " threads");
  if (grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
    fail("grid " + std::to_string(grid.x) + " x " + std::to_string(grid.y) + " x " +
         std::to_string(grid.z));
  constexpr size_t most = 163 << 10;  // of sm_80; sm_90 has 227 KB
  if (shared_bytes > most) fail(std::to_string(shared_bytes) + " bytes of shared memory");
}

void run_block() {
#ifndef CUDA_ON_CPU_TSAN
  memories.clear();
#endif
  shared_arrays.clear();
  unstarted.n = ready.n = at_barrier.n = 0;
  live = count;
  for (int w = 0; w * 32 < count; ++w) {
    const int rest = count - w * 32;
    warps[w].n = 0;
    warps[w].exited = 0;
    warps[w].lanes = rest >= 32 ? ~0u : (1u << rest) - 1;
    for (Meeting& m : warps[w].meetings) m.arrived = 0, m.waiting.n = 0;
  }
  for (int i = 0; i < count; ++i) {
    const unsigned u = static_cast<unsigned>(i);
    threads[i].index = {u % blockDim.x, u / blockDim.x % blockDim.y, u / (blockDim.x * blockDim.y)};
    threads[i].done = false;
    threads[i].stack = -1;
    unstarted.push(options.order == Order::forward ? count - 1 - i : i);
#ifdef CUDA_ON_CPU_TSAN
    std::swap(threads[i].fiber, threads[engine() % static_cast<unsigned>(i + 1)].fiber);
#endif
  }
  current_stack = -1;
  run_next(false);
}

}  // namespace

void copy_bytes(void* to, const void* from, unsigned n) {
  for (unsigned i = 0; i < n; ++i)
    static_cast<volatile unsigned char*>(to)[i] =
        static_cast<const volatile unsigned char*>(from)[i];
}

void barrier(int line) {
  if (at_barrier.n == 0)
    barrier_line = line;
  else if (barrier_line != line)
    stop("divergent __syncthreads: lines " + std::to_string(barrier_line) + " and " +
         std::to_string(line));
  [[maybe_unused]] char* tag = &barrier_tag[barrier_generation & 1];
  __tsan_release(tag);
  if (at_barrier.n + 1 == live) {
    ++barrier_generation;
    wake(at_barrier);
    go_on("__syncthreads", line);
  } else {
    if (options.strict_exit && live < count)
      stop("__syncthreads at line " + std::to_string(line) + " after threads have ended");
    at_barrier.push(current);
    wait_here("__syncthreads", line);
  }
  __tsan_acquire(tag);
}

uint32_t exchange(uint32_t mask, const void* value, unsigned bytes, const char* what, int line,
                  bool orders_memory, const unsigned char** slots) {
  Warp& warp = warps[current / 32];
  const std::string_view name = what;
  const auto here = [&] { return std::string(name) + " at line " + std::to_string(line); };
  if (!(mask >> lane & 1)) stop(here() + ": the calling lane is not in its mask");
  if (options.strict_exit && (mask & warp.exited)) stop(here() + ": its mask names ended lanes");
  if (mask & ~warp.lanes) stop(here() + ": its mask names lanes that the block does not have");
  Meeting& m = meeting_for(warp, mask);
  if (m.arrived && m.line != line)
    stop(here() + ": other lanes of its mask are at line " + std::to_string(m.line));
  m.line = line;
  const uint32_t generation = m.generation;
  unsigned char(*slot)[16] = m.slot[generation & 1];
  copy_bytes(slot[lane], value, bytes);
  if (orders_memory) __tsan_release(slot);
  m.arrived |= 1u << lane;
  if (m.arrived == (mask & warp.lanes & ~warp.exited)) {
    release_if_complete(m, warp.lanes & ~warp.exited);
    go_on(what, line);
  } else {
    m.waiting.push(current);
    wait_here(what, line);
  }
  if (orders_memory) __tsan_acquire(slot);
  *slots = slot[0];
  return m.present[generation & 1];
}

void forbidden(const char* what, const char* why, int line) {
  stop(std::string(what) + " at line " + std::to_string(line) + ": " + why);
}

void* shared_array(const void* key, size_t bytes) {
  char* memory = nullptr;
  for (const Shared& s : shared_arrays)
    if (s.key == key) memory = s.memory;
  if (!memory) {
#ifdef CUDA_ON_CPU_TSAN  // as the launcher, or the first user would seem to race with the others
    __tsan_switch_to_fiber(main_fiber, 1);
#endif
    shared_arrays.push_back({key, memory = allocate_shared(bytes)});
    __tsan_release(&start_tag);
#ifdef CUDA_ON_CPU_TSAN
    __tsan_switch_to_fiber(fibers[current_stack], 1);
#endif
  }
  __tsan_acquire(&start_tag);
  return memory;
}

void run_grid(void (*f)(void*), void* a, dim3 grid, dim3 block, size_t shared_bytes) {
  check_limits(grid, block, shared_bytes);
  gridDim = grid;
  blockDim = block;
  body = f;
  argument = a;
  count = static_cast<int>(block.x * block.y * block.z);
  engine.seed(options.seed);
  error.clear();
#ifdef CUDA_ON_CPU_TSAN
  main_fiber = __tsan_get_current_fiber();
  for (int i = 0; i < count; ++i) threads[i].fiber = i;
  while (static_cast<int>(stacks.size()) < count) {
    fibers[stacks.size()] = __tsan_create_fiber(0);
    add_stack();
  }
#endif
  const bool backwards = options.order == Order::reverse;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {backwards ? grid.x - 1 - x : x, backwards ? grid.y - 1 - y : y, z};
#ifndef CUDA_ON_CPU_TSAN
        memories.clear();
#endif
        dynamic_memory = nullptr;
        SharedMemory dynamic;
        if (shared_bytes) {
          dynamic_memory = allocate_shared(shared_bytes);
          dynamic = std::move(memories.back());
          memories.pop_back();
        }
        __tsan_release(&start_tag);
        run_block();
#ifdef CUDA_ON_CPU_TSAN
        if (dynamic) memories.push_back(std::move(dynamic));
#endif
        if (!error.empty()) {
          free_stacks();
          memories.clear();
          throw std::runtime_error(error);
        }
      }
  __tsan_acquire(&end_tag);
  memories.clear();
}

}  // namespace cuda_on_cpu

// Saves the registers that a function must keep, changes stacks, and returns on the other one.
asm(R"(
.text
.globl cuda_on_cpu_switch
.type cuda_on_cpu_switch,@function
cuda_on_cpu_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size cuda_on_cpu_switch,.-cuda_on_cpu_switch
)");
