// Gradients have memory of their own and are encoded into the window. The owner of a part decodes
// and sums in fp32. If the codec is lossy the owner's sum goes through it as well, whether or not
// it travels, so that what the optimizer sees is the same in every stage. How runs lie on the wire
// is wire.h's matter. Read next: placement.h.
#include <algorithm>
#include <optional>

#include "core/autograd.h"
#include "core/backend.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "dist/accumulator.h"
#include "dist/carried.h"
#include "dist/placement.h"
#include "dist/wire.h"

namespace lockstep {

namespace {

class Staged : public BucketExchange {
 public:
  Staged(const ExchangeRules& rules, Communicator& communicator,
         const std::vector<NamedTensor>& parameters, const Bucket& bucket)
      : rules_(rules), communicator_(communicator), parameters_(parameters), bucket_(bucket) {
    for (bool compressed : {false, true})
      for (const auto& part : bucket.parts)
        runs_[compressed].push_back(plan_runs(rules, compressed, parameters, part));
    place_gradients();
    place_shard();
    if (with_tail(rules_, true)) place_ends();
    if (rules_.momentum > 0) momentum_.allocate(bucket_.elements());
    if (std::ranges::none_of(runs_[1], any_lossy)) return;
    if (rules_.momentum > 0) allocate_powers();
    if (!rules_.error_feedback) return;
    sent_.allocate(bucket_.elements());
    owned_.allocate(shard_elements_);
  }

  std::vector<size_t> capacity() const override {
    std::vector<size_t> bytes;
    for (const auto& part : bucket_.parts)
      bytes.push_back(wire_capacity(rules_, parameters_, part));
    return bytes;
  }

  void use(const WindowPtr& window, std::vector<Tensor> norms) override {
    window_ = window;
    if (rules_.only_floats()) {
      window_->fold_with(sum_floats);
      window_->let_transport_sum();
    }
    norms_ = std::move(norms);
  }

  void begin_step(const MicroStep& first) override {
    compressed_ = first.step > rules_.warmup_steps;
    sum_->begin(first.count);
    if (local_sum_) local_sum_->begin(first.count);
    exchanges_.clear();
    whole_sum_ = {};
    unpacked_bytes_ = 0;
  }

  Tensor buffer(size_t member) override {
    if (rules_.keep_gradients) return members_[member];
    CategoryScope scope(Category::gradients);
    return members_[member] = Tensor::empty(shape_of(member));
  }

  void replayed(size_t member, void* at) override {
    if (rules_.keep_gradients || at == nullptr) return;  // where it always is, or nowhere
    const std::shared_ptr<void> not_mine(std::shared_ptr<void>(), at);
    const Shape& shape = shape_of(member);
    const size_t bytes = static_cast<size_t>(numel(shape)) * sizeof(float);
    members_[member] = Tensor::over(
        Allocator::current().adopt(at, bytes, Category::gradients, not_mine), 0, shape, DType::f32);
  }

  void launch(const MicroStep& micro) override {
    if (local_sum_ && !add_locally(micro)) return;
    communicator_.reclaim(window_).wait();
    std::vector<size_t> used;
    for (int p = 0; p < communicator_.size(); ++p) used.push_back(encode_part(p, micro));
    if (!rules_.keep_gradients) release_gradients();
    const MicroStep of_shard = rules_.reduced ? micro : MicroStep{.step = micro.step};
    exchanges_.push_back(communicator_.exchange(
        window_, [this, of_shard](auto views) { sum(views, of_shard); }, std::move(used)));
  }

  void wait() override {
    for (const Work& work : exchanges_) work.wait();
    whole_sum_.wait();  // started by the last exchange, if at all
  }

  void finish(GradientReport& report, std::vector<CommSpan>& spans) override {
    for (const Work& work : exchanges_) add_work(work, report, spans);
    if (rules_.gather) add_work(whole_sum_, report, spans);
    report.unpacked_bytes += unpacked_bytes_;
    for (const Work& work : exchanges_)
      report.packed_bytes += static_cast<int64_t>(work.traffic().used - uncompressed_bytes());
  }

  void end_step(bool committed) override {
    if (!committed) return;
    if (momentum_.kept()) momentum_.commit();
    if (!compressed_ || !sent_.kept()) return;
    sent_.commit();
    owned_.commit();
  }

  // Every owner shows the powers of its part.
  void precondition(const std::vector<const float*>& moments) override {
    if (!powers_.defined()) return;
    communicator_.reclaim(window_).wait();
    const int rank = communicator_.rank();
    uint8_t* part = reinterpret_cast<uint8_t*>(window_->part(rank).data());
    for (size_t i = 0; i < mine(true).size(); ++i) {
      const CellRun& cells = mine(true)[i].cells;
      backend().root_powers(moments[i], part + cells.offset - bucket_.edges[rank], cells.elements);
    }
    const auto read = [this](auto views) {
      for (size_t r = 0; r < views.size(); ++r)
        for (const WireRun& run : runs_[1][r])
          backend().move(views[r].data() + run.cells.offset - bucket_.edges[r],
                         powers_.data<uint8_t>() + run.cells.offset, run.cells.elements);
    };
    communicator_.gather(window_, read, bucket_.edges[rank + 1] - bucket_.edges[rank]).wait();
    for (auto& part_runs : runs_[1])
      for (WireRun& run : part_runs)
        if (run.compressed) run.powers = powers_.data<uint8_t>() + run.cells.offset;
  }

  std::vector<Tensor> means() override { return rules_.gather ? members_ : shard_; }

  std::vector<NamedTensor> residuals() const override {
    std::vector<NamedTensor> all;
    for (const auto& part : runs_[1])
      for (const WireRun& run : part) {
        if (momentum_.kept())
          all.push_back(named(run, momentum_, run.cells.offset, ".rank_momentum"));
        if (sent_.kept() && run.compressed)
          all.push_back(named(run, sent_, run.cells.offset, ".residual"));
      }
    if (!owned_.kept()) return all;
    for (size_t i = 0; i < mine(true).size(); ++i)
      if (mine(true)[i].compressed)
        all.push_back(named(mine(true)[i], owned_, shard_[i].offset(), ".owner_residual"));
    return all;
  }

 private:
  const std::vector<WireRun>& mine(bool compressed) const {
    return runs_[compressed][communicator_.rank()];
  }
  const Shape& shape_of(size_t member) const {
    return parameters_[bucket_.members[member].parameter].tensor.shape();
  }

  void place_gradients() {
    members_.resize(bucket_.members.size());
    if (!rules_.keep_gradients) return;
    CategoryScope scope(Category::gradients);
    const Tensor flat = Tensor::zeros({bucket_.elements()});
    for (size_t m = 0; m < members_.size(); ++m)
      members_[m] =
          Tensor::over(flat.storage(), bucket_.members[m].offset, shape_of(m), DType::f32);
    if (rules_.order == SumOrder::any_world && !rules_.reduced)
      local_sum_.emplace(rules_.order, flat);
  }

  void place_shard() {
    for (const WireRun& run : mine(true)) shard_elements_ += run.cells.elements;
    CategoryScope scope(Category::gradients);
    const Tensor flat = Tensor::empty({shard_elements_});
    sum_.emplace(rules_.reduced ? rules_.order : SumOrder::same_world, flat);
    int64_t at = 0;
    for (const WireRun& run : mine(true)) {
      shard_.push_back(
          shard_view(parameters_[run.cells.parameter], run.cells, flat.storage(), at, DType::f32)
              .tensor);
      at += run.cells.elements;
    }
  }

  void allocate_powers() {
    CategoryScope scope(Category::buffers);
    powers_ = Tensor::zeros({bucket_.elements()}, DType::u8);
  }

  void place_ends() {
    std::vector<uint64_t> ends;
    for (const auto& runs : runs_[1]) ends.push_back(WirePart(runs, true).end_of_places());
    ends_ = Allocator::current().allocate(ends.size() * sizeof ends[0], Category::buffers);
    ends_->memory().write(ends_->data(), ends.data(), ends_->bytes());
  }
  const uint64_t* end_of_places(int p) const {
    return ends_ ? static_cast<const uint64_t*>(ends_->data()) + p : nullptr;
  }

  WirePart wire(int p) const { return {runs_[compressed_][p], with_tail(rules_, compressed_)}; }

  // Of what an exchange sends, all parts together.
  size_t uncompressed_bytes() const {
    size_t sum = 0;
    for (const auto& part : runs_[compressed_])
      for (const WireRun& run : part)
        if (!run.compressed) sum += run.codec->place_bytes(run.shape);
    return sum;
  }

  // The tree over this rank's micro steps; true when it is complete.
  bool add_locally(const MicroStep& micro) {
    for (size_t m = 0; m < members_.size(); ++m)
      parallel_pieces(members_[m].numel(), backend().piece(), [&](int64_t begin, int64_t end) {
        local_sum_->add(micro, bucket_.members[m].offset + begin, members_[m].data<float>() + begin,
                        end - begin);
      });
    return micro.last();
  }

  float* gradient(const CellRun& run) const {
    for (size_t m = 0; m < members_.size(); ++m)
      if (bucket_.members[m].parameter == run.parameter)
        return members_[m].data<float>() + run.cell * cell_size;
    fail(Exit::internal, "[exchange] parameter {} is not in its bucket", run.parameter);
  }

  // The momentum is kept from the first step on, so that it is there when warm-up ends and it is
  // sent; until then x stays the gradient.
  void average(const CellRun& cells, float* x, bool first) {
    const Scratch<float> copy(compressed_ ? 0 : cells.elements);
    parallel_pieces(cells.elements, backend().piece(), [&](int64_t begin, int64_t end) {
      float* share = (compressed_ ? x : copy.data()) + begin;
      if (!compressed_) backend().move(x + begin, share, (end - begin) * sizeof(float));
      momentum_.average(static_cast<float>(rules_.momentum), share, cells.offset + begin,
                        end - begin, first);
    });
  }

  size_t encode_part(int p, const MicroStep& micro) {
    const std::vector<WireRun>& runs = runs_[compressed_][p];
    const auto encode_one = [&](size_t i, std::byte* place, const WireTail& tail) {
      const WireRun& run = runs[i];
      float* x = gradient(run.cells);
      const bool fed = sent_.kept() && run.compressed;
      const bool first = !rules_.reduced || micro.index == 0;
      if (momentum_.kept()) average(run.cells, x, first);
      if (fed)
        parallel_pieces(run.cells.elements, backend().piece(), [&](int64_t begin, int64_t end) {
          sent_.add_to(x + begin, run.cells.offset + begin, end - begin, first);
        });
      run.encode(x, place, tail, fed ? sent_.pending(run.cells.offset) : nullptr);
      if (run.compressed)
        unpacked_bytes_ += run.cells.elements * static_cast<int64_t>(sizeof(float));
    };
    return wire(p).write(window_->part(p), end_of_places(p), encode_one);
  }

  void release_gradients() {
    for (size_t m = 0; m < members_.size(); ++m) {
      members_[m] = Tensor();
      parameters_[bucket_.members[m].parameter].tensor.leaf().release_grad();
    }
  }

  // ---- on the communication thread

  void sum(std::span<const ByteView> views, const MicroStep& micro) {
    set_num_threads(1);
    const std::vector<WireRun>& runs = mine(compressed_);
    const WirePart part = wire(communicator_.rank());
    for (size_t i = 0; i < runs.size(); ++i) {
      std::vector<const std::byte*> encoded;
      for (ByteView view : views) encoded.push_back(part.begin_of(view, i));
      sum_run(runs[i], encoded, micro, shard_[i].offset());
    }
    if (!micro.last()) return;
    const size_t used = encode_sum();
    measure(shard_, norms_);
    if (rules_.gather) gather_sum(used);
  }

  // Of every rank's encoding of a run, piece by piece.
  void sum_run(const WireRun& run, const std::vector<const std::byte*>& encoded,
               const MicroStep& micro, int64_t offset) {
    const int64_t piece = std::min(backend().piece(), run.cells.cells * cell_size);
    const bool as_floats = run.codec->floats_in(encoded[0]) != nullptr;
    const Scratch<float> scratch(piece * (as_floats ? 1 : std::ssize(encoded)));
    float* total = scratch.data();
    std::vector<const float*> parts(encoded.size());
    for (int64_t at = 0; at < run.cells.elements; at += piece) {
      const int64_t count = std::min(piece, run.cells.elements - at);
      for (size_t r = 0; r < encoded.size(); ++r) {
        float* decoded = scratch.data() + static_cast<int64_t>(r) * piece;
        parts[r] = as_floats ? run.codec->floats_in(encoded[r]) + at : decoded;
        if (!as_floats) run.decode(encoded[r], at, count, decoded);
      }
      backend().tree_sum(parts, {&total, 1}, count);
      sum_->add(micro, offset + at, total, count);
    }
  }

  // Into my own part, which nobody else reads until it is gathered. Returns the bytes used.
  size_t encode_sum() {
    const std::vector<WireRun>& runs = mine(compressed_);
    if (!rules_.gather && !any_lossy(runs)) return 0;
    const int rank = communicator_.rank();
    const auto encode_one = [&](size_t i, std::byte* place, const WireTail& tail) {
      const WireRun& run = runs[i];
      float* x = shard_[i].data<float>();
      const int64_t at = shard_[i].offset();
      const bool fed = owned_.kept() && run.compressed;
      if (fed) owned_.add_to(x, at, run.cells.elements, true);
      run.encode(x, place, tail, fed ? owned_.pending(at) : nullptr);
      if (!run.codec->lossless()) run.decode(place, 0, run.cells.elements, x);
    };
    return wire(rank).write(window_->part(rank), end_of_places(rank), encode_one);
  }

  // Started only here, because the encoding tells how many bytes travel. On no rank does another
  // operation on this window come in between.
  void gather_sum(size_t used) {
    whole_sum_ = communicator_.gather(
        window_,
        [this](auto views) {
          for (size_t r = 0; r < views.size(); ++r) {
            const std::vector<WireRun>& runs = runs_[compressed_][r];
            const WirePart part = wire(static_cast<int>(r));
            for (size_t i = 0; i < runs.size(); ++i)
              runs[i].decode(part.begin_of(views[r], i), 0, runs[i].cells.elements,
                             gradient(runs[i].cells));
          }
        },
        used);
  }

  NamedTensor named(const WireRun& run, const Carried& carried, int64_t offset,
                    const char* suffix) const {
    NamedTensor view = shard_view(parameters_[run.cells.parameter], run.cells,
                                  carried.committed().storage(), offset, DType::f32);
    return {view.name + suffix, view.tensor};
  }

  const ExchangeRules rules_;
  Communicator& communicator_;
  const std::vector<NamedTensor>& parameters_;
  const Bucket bucket_;
  std::vector<std::vector<WireRun>> runs_[2];  // uncompressed, compressed; by part
  WindowPtr window_;
  std::vector<Tensor> members_;           // gradients; undefined while they have no memory
  std::optional<Accumulator> local_sum_;  // any_world, not reduced: over my micro steps
  std::optional<Accumulator> sum_;        // of my part over ranks and micro steps
  int64_t shard_elements_ = 0;
  std::vector<Tensor> shard_, norms_;  // by run of my part
  Carried sent_, owned_;               // residuals, laid out as the bucket, as my shard
  Carried momentum_;                   // mine, laid out as the bucket
  Tensor powers_;                      // u8, laid out as the bucket
  std::shared_ptr<Storage> ends_;      // by part with a tail: where the tail begins
  bool compressed_ = false;            // this step
  std::vector<Work> exchanges_;
  Work whole_sum_;              // written before the last exchange is done
  int64_t unpacked_bytes_ = 0;  // of what was compressed
};

}  // namespace

std::unique_ptr<BucketExchange> make_staged_exchange(const ExchangeRules& rules,
                                                     Communicator& communicator,
                                                     const std::vector<NamedTensor>& parameters,
                                                     const Bucket& bucket) {
  return std::make_unique<Staged>(rules, communicator, parameters, bucket);
}

}  // namespace lockstep
