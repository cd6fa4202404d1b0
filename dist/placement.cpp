// The three residences, from the simplest to the leanest. Read next: stages.h.
#include "dist/placement.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>
#include <set>
#include <utility>

#include "core/backend.h"

namespace lockstep {

namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kAlignment = 64;  // bytes; every run starts on a cache line

size_t aligned(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

class Replicated : public Placement {
 public:
  explicit Replicated(const std::vector<NamedTensor>& parameters) : parameters_(parameters) {}
  const std::vector<NamedTensor>& shards() const override { return parameters_; }
  void begin_update() override {}
  void publish() override {}
  void acquire(size_t) override {}
  void release(size_t) override {}
  void report(GradientReport&) override {}
  void set_overlap(bool) override {}  // nothing travels

 private:
  const std::vector<NamedTensor> parameters_;
};

// What the other two share: a window per bucket, the shards in it, the cost of gathering.
class Windowed : public Placement {
 public:
  const std::vector<NamedTensor>& shards() const override { return shards_; }

  void report(GradientReport& report) override {
    count_timed();
    report += std::exchange(times_, {});
    report.param_bytes += std::exchange(bytes_, 0);
    report.host_bytes += std::exchange(host_bytes_, 0);
  }
  void set_overlap(bool overlap) override { overlap_ = overlap; }

 protected:
  Windowed(Communicator& communicator, const std::vector<NamedTensor>& parameters,
           const std::vector<size_t>& unit_of, const std::vector<Bucket>& buckets,
           StepRecorder& recorder)
      : communicator_(communicator),
        parameters_(parameters),
        buckets_(buckets),
        recorder_(recorder),
        gathers_(buckets.size()) {
    size_t units = unit_of.empty() ? 1 : unit_of.back() + 1;
    buckets_of_.resize(units);
    for (size_t b = 0; b < buckets_.size(); ++b)
      for (const Bucket::Member& member : buckets_[b].members) {
        auto& list = buckets_of_[unit_of.empty() ? 0 : unit_of[member.parameter]];
        if (list.empty() || list.back() != b) list.push_back(b);
      }
  }

  size_t element_bytes(size_t parameter) const {
    return size_of(parameters_[parameter].tensor.dtype());
  }
  std::byte* address(const CellRun& run) const {
    return static_cast<std::byte*>(parameters_[run.parameter].tensor.raw()) +
           run.cell * cell_size * element_bytes(run.parameter);
  }
  size_t bytes(const CellRun& run) const { return run.elements * element_bytes(run.parameter); }

  // The shard of this rank that lies `at` bytes into `storage`.
  void add_shard(const CellRun& run, const std::shared_ptr<Storage>& storage, size_t at) {
    const DType dtype = parameters_[run.parameter].tensor.dtype();
    shards_.push_back(shard_view(parameters_[run.parameter], run, storage,
                                 static_cast<int64_t>(at / size_of(dtype)), dtype));
  }

  void start_gather(size_t b, const WindowPtr& window, Reader reader) {
    gathers_[b] = {communicator_.gather(window, std::move(reader)),
                   recorder_.ready(StepTrace::What::parameters, b)};
    if (!overlap_) finish(*gathers_[b]);
  }

  void wait(size_t b) {
    if (!gathers_[b]) return;
    recorder_.needed(gathers_[b]->transfer);
    finish(*gathers_[b]);
    gathers_[b].reset();
  }

  // For destructors, which have no one to tell what went wrong.
  void settle() {
    try {
      for (const auto& gather : gathers_)
        if (gather) gather->work.wait();
    } catch (const std::exception&) {  // known to whoever waits for it
    }
  }

  Communicator& communicator_;
  const std::vector<NamedTensor> parameters_;
  const std::vector<Bucket> buckets_;
  std::vector<std::vector<size_t>> buckets_of_;  // by unit
  std::vector<NamedTensor> shards_;
  StepRecorder& recorder_;

 private:
  struct Gather {
    Work work;
    size_t transfer;  // of the trace
    bool finished = false;
  };
  // The host waited from start to end, and a device may still be at it.
  struct Awaited {
    Work work;
    Clock::time_point start, end;
  };

  void finish(Gather& gather) {
    if (std::exchange(gather.finished, true)) return;
    const auto start = Clock::now();
    recorder_.wait_for_transfer([&] { gather.work.wait(); });
    const Work::Traffic traffic = gather.work.traffic();
    bytes_ += static_cast<int64_t>(traffic.to_ranks);
    host_bytes_ += static_cast<int64_t>(traffic.to_hosts);
    recorder_.sent(gather.transfer, traffic);
    awaited_.push_back({gather.work, start, Clock::now()});
    count_timed();
  }

  void count_timed() {
    for (; !awaited_.empty() && awaited_.front().work.timed(); awaited_.pop_front()) {
      const auto& [work, start, end] = awaited_.front();
      times_ += comm_times(start, end, {{work.timing().arrived, work.timing().finished}});
    }
  }

  std::vector<std::optional<Gather>> gathers_;  // by bucket: begun, and not yet needed
  bool overlap_ = true;
  std::deque<Awaited> awaited_;
  CommTimes times_;
  int64_t bytes_ = 0, host_bytes_ = 0;
};

// Windows hold the parameters themselves: a gather fills in what the others updated. It is started
// as soon as the shards are written and awaited where forward needs it.
class Gathered : public Windowed {
 public:
  Gathered(Communicator& communicator, const std::vector<NamedTensor>& parameters,
           const std::vector<size_t>& unit_of, const std::vector<Bucket>& buckets,
           StepRecorder& recorder)
      : Windowed(communicator, parameters, unit_of, buckets, recorder) {
    for (const Bucket& bucket : buckets_) move_in(bucket);
  }
  ~Gathered() override { settle(); }

  void begin_update() override {
    for (size_t b = 0; b < buckets_.size(); ++b) {
      wait(b);
      communicator_.reclaim(windows_[b]).wait();
    }
  }
  // Forward uses the last bucket first.
  void publish() override {
    for (size_t b = buckets_.size(); b-- > 0;) start_gather(b, windows_[b], {});
  }
  void acquire(size_t unit) override {
    for (size_t b : buckets_of_[unit]) wait(b);
  }
  void release(size_t) override {}

 private:
  void move_in(const Bucket& bucket) {
    std::vector<size_t> offset;  // by member, bytes
    size_t end = 0;
    for (const Bucket::Member& member : bucket.members) {
      offset.push_back(end);
      end += aligned(parameters_[member.parameter].tensor.bytes());
    }
    const auto place = [&](const CellRun& run) {
      for (size_t m = 0; m < bucket.members.size(); ++m)
        if (bucket.members[m].parameter == run.parameter)
          return offset[m] + run.cell * cell_size * element_bytes(run.parameter);
      fail(Exit::internal, "[placement] no member {}", run.parameter);
    };
    std::vector<size_t> part_bytes(communicator_.size());  // from the last: an empty one has none
    size_t edge = end;
    for (int r = communicator_.size(); r-- > 0;) {
      const auto& runs = bucket.parts[r];
      const size_t begin = r == 0 ? 0 : runs.empty() ? edge : place(runs.front());
      part_bytes[r] = edge - begin;
      edge = begin;
    }
    const WindowPtr window =
        communicator_.window(fmt::format("parameters {}", windows_.size()), part_bytes);
    const auto storage = Allocator::current().adopt(window->mine().data(), window->bytes(),
                                                    Category::parameters, window);
    for (size_t m = 0; m < bucket.members.size(); ++m) {
      const Tensor& tensor = parameters_[bucket.members[m].parameter].tensor;
      std::byte* home = window->mine().data() + offset[m];
      backend().move(tensor.raw(), home, tensor.bytes());
      tensor.storage()->release();
      tensor.storage()->rebind(home, storage);
    }
    for (const CellRun& run : bucket.parts[communicator_.rank()])
      add_shard(run, storage, place(run));
    windows_.push_back(window);
  }

  std::vector<WindowPtr> windows_;  // by bucket
};

// Windows hold this rank's shards alone. A unit's parameters get memory when they are fetched and
// lose it at release. What will be needed next is fetched ahead, as the last step showed.
class Sharded : public Windowed {
 public:
  Sharded(Communicator& communicator, const std::vector<NamedTensor>& parameters,
          const std::vector<size_t>& unit_of, const std::vector<Bucket>& buckets,
          StepRecorder& recorder, const Initialise& initialise)
      : Windowed(communicator, parameters, unit_of, buckets, recorder), units_(buckets_of_.size()) {
    for (const Bucket& bucket : buckets_) move_in(bucket, initialise);
    for (const auto& [name, tensor] : parameters_)
      if (tensor.numel() > 0) tensor.storage()->release();
    for (size_t unit = 0; unit < units_.size(); ++unit) prepare_pair(unit);
  }
  ~Sharded() override {
    try {
      drop_unused();
    } catch (const std::exception&) {  // known to whoever waits for it
    }
  }

  void begin_update() override {
    drop_unused();
    at_ = 0;
    for (const WindowPtr& window : windows_) communicator_.reclaim(window).wait();
  }
  void publish() override {}

  void acquire(size_t unit) override {
    if (units_[unit].users++ > 0) return;
    fetch(unit);
    for (size_t b : buckets_of_[unit]) wait(b);
    fetch_ahead(unit);
  }
  void release(size_t unit) override {
    check(units_[unit].users > 0, "[placement] unit {} released more often than acquired", unit);
    if (--units_[unit].users == 0) drop(unit);
  }

 private:
  struct Unit {
    int users = 0;
    bool fetched = false;
  };

  void move_in(const Bucket& bucket, const Initialise& initialise) {
    std::vector<size_t> part_bytes;
    for (const auto& runs : bucket.parts) {
      size_t end = 0;
      for (const CellRun& run : runs) end += aligned(bytes(run));
      part_bytes.push_back(end);
    }
    const WindowPtr window = communicator_.window(fmt::format("shards {}", windows_.size()),
                                                  part_bytes, Layout::own_part);
    const auto mine = window->part(communicator_.rank());
    const auto storage =
        Allocator::current().adopt(mine.data(), mine.size(), Category::parameters, window);
    size_t at = 0;
    for (const CellRun& run : bucket.parts[communicator_.rank()]) {
      Storage& whole = *parameters_[run.parameter].tensor.storage();
      if (initialise) {
        whole.rebind();
        initialise(run.parameter);
      }
      backend().move(address(run), mine.data() + at, bytes(run));
      if (initialise) whole.release();
      add_shard(run, storage, at);
      at += aligned(bytes(run));
    }
    windows_.push_back(window);
  }

  // A unit's last reader may be late when the next unit is fetched. By then all have read the one
  // before, because they wait for a unit before they fetch the next.
  void prepare_pair(size_t unit) {
    std::vector<WindowPtr> pair;
    for (size_t u : std::set{unit, (unit + 1) % units_.size()})
      for (size_t b : buckets_of_[u]) pair.push_back(windows_[b]);
    communicator_.prepare_to_gather(pair);
  }

  void fetch(size_t unit) {
    if (std::exchange(units_[unit].fetched, true)) return;
    for (size_t b : buckets_of_[unit]) {
      for (const Bucket::Member& member : buckets_[b].members)
        parameters_[member.parameter].tensor.storage()->rebind();
      start_gather(b, windows_[b], [this, b](auto views) { scatter(b, views); });
    }
  }

  // On the communication thread: every rank's runs to their places.
  void scatter(size_t b, std::span<const ByteView> views) const {
    for (size_t r = 0; r < views.size(); ++r) {
      size_t at = 0;
      for (const CellRun& run : buckets_[b].parts[r]) {
        backend().move(views[r].data() + at, address(run), bytes(run));
        at += aligned(bytes(run));
      }
    }
  }

  void drop(size_t unit) {
    units_[unit].fetched = false;
    for (size_t b : buckets_of_[unit]) {
      wait(b);
      for (const Bucket::Member& member : buckets_[b].members)
        parameters_[member.parameter].tensor.storage()->release();
    }
  }

  // Fetched ahead in vain, or about to be out of date.
  void drop_unused() {
    for (size_t unit = 0; unit < units_.size(); ++unit)
      if (units_[unit].fetched && units_[unit].users == 0) drop(unit);
  }

  // trace_ is the order of the units since the last update, as far as it is known; all ranks see
  // the same.
  void fetch_ahead(size_t unit) {
    if (at_ == trace_.size() || trace_[at_] != unit) {
      trace_.resize(at_);
      trace_.push_back(unit);
    }
    if (++at_ < trace_.size()) fetch(trace_[at_]);
  }

  std::vector<WindowPtr> windows_;  // by bucket
  std::vector<Unit> units_;
  std::vector<size_t> trace_;
  size_t at_ = 0;
};

}  // namespace

std::unique_ptr<Placement> make_placement(Residence residence, Communicator& communicator,
                                          const std::vector<NamedTensor>& parameters,
                                          const std::vector<size_t>& unit_of,
                                          const std::vector<Bucket>& buckets,
                                          StepRecorder& recorder, const Initialise& initialise) {
  switch (residence) {
    case Residence::gathered:
      return std::make_unique<Gathered>(communicator, parameters, unit_of, buckets, recorder);
    case Residence::sharded:
      return std::make_unique<Sharded>(communicator, parameters, unit_of, buckets, recorder,
                                       initialise);
    case Residence::replicated:
      break;
  }
  return std::make_unique<Replicated>(parameters);
}

NamedTensor shard_view(const NamedTensor& whole, const CellRun& run,
                       const std::shared_ptr<Storage>& storage, int64_t offset, DType dtype) {
  const int64_t first = run.cell * cell_size;
  const Shape shape = whole.tensor.ndim() >= 2 ? Shape{1, run.elements} : Shape{run.elements};
  return {fmt::format("{}[{}:{}]", whole.name, first, first + run.elements),
          Tensor::over(storage, offset, shape, dtype)};
}

}  // namespace lockstep
