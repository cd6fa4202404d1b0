// What all communicators share: names of ranks and moments, what is checked before anything starts,
// sums of floats. Read next: config.h.
#include "dist/communicator.h"

#include <algorithm>
#include <bit>

#include "core/backend.h"
#include "dist/work_state.h"

namespace lockstep {

std::string Topology::describe(int r) const {
  return fmt::format("rank {} on host {}", r, host_name[r]);
}

std::vector<int> Topology::ranks_on(int host) const {
  std::vector<int> ranks;
  for (int r = 0; r < size; ++r)
    if (host_of[r] == host) ranks.push_back(r);
  return ranks;
}

bool Topology::hosts_are_blocks() const {
  const int block = static_cast<int>(std::count(host_of.begin(), host_of.end(), 0));
  if (hosts == 1 || block == 1 || !std::has_single_bit(static_cast<unsigned>(block))) return false;
  for (int r = 0; r < size; ++r)
    if (host_of[r] != r / block) return false;
  return true;
}

std::string Moment::describe() const {
  switch (phase) {
    case Phase::start:
      return "at start";
    case Phase::step:
      return step > 0 ? fmt::format("in step {}", step) : "before the first step";
    case Phase::checkpoint:
      return fmt::format("in the checkpoint of step {}", step);
    case Phase::evaluation:
      return fmt::format("in the evaluation after step {}", step);
  }
  fail(Exit::internal, "[dist] no phase {}", static_cast<int>(phase));
}

const char* Moment::limit_key() const {
  constexpr const char* kKeys[] = {"dist.start_timeout_s", "dist.timeout_s",
                                   "dist.checkpoint_timeout_s", "dist.eval_timeout_s"};
  return kKeys[static_cast<int>(phase)];
}

bool Work::done() const {
  return !state_ || state_->done();
}

void Work::wait() const {
  if (!state_) return;
  if (const EventPtr event = state_->wait()) backend().stream().wait(event);
}

Work::Timing Work::timing() const {
  return state_ ? state_->timing() : Timing{};
}

bool Work::timed() const {
  return !state_ || state_->timed();
}

Work::Traffic Work::traffic() const {
  return state_ ? state_->traffic() : Traffic{};
}

Window::Window(std::string name, std::span<const size_t> part_bytes, Layout layout, int rank)
    : name_(std::move(name)), layout_(layout), rank_(rank), offsets_{0} {
  for (size_t bytes : part_bytes) offsets_.push_back(offsets_.back() + bytes);
}

std::span<std::byte> Window::part(int p) {
  if (layout_ == Layout::whole) return mine().subspan(part_offset(p), part_bytes(p));
  check(p == rank_, "[window] '{}' holds part {} only on rank {}; rank {} asked for it", name_, p,
        p, rank_);
  return mine();
}

namespace {
void check_used(const Window& window, int p, size_t used) {
  check(used <= window.part_bytes(p) || used == told_by_part,
        "[window] '{}': {} bytes used of part {}, which has {}", window.name(), used, p,
        window.part_bytes(p));
}
}  // namespace

void check_exchange(const Window& window, const Reader& reader, std::span<const size_t> used) {
  check(reader != nullptr, "[exchange] '{}' needs a reader: the parts are the caller's to combine",
        window.name());
  check(used.empty() || std::ssize(used) == window.parts(),
        "[exchange] '{}': used bytes of {} parts for {} ranks", window.name(), used.size(),
        window.parts());
  check(!window.fold() || used.empty() || used[0] != told_by_part,
        "[exchange] '{}' is folded: its used bytes are the same on all ranks, not told by parts",
        window.name());
  check_holds_all(window);
  for (size_t p = 0; p < used.size(); ++p) check_used(window, static_cast<int>(p), used[p]);
}

void check_gather(const Window& window, const Reader& reader, size_t used, int rank) {
  check(reader || window.layout() == Layout::whole,
        "[gather] '{}' needs a reader: its whole has no place in the window", window.name());
  if (used != SIZE_MAX) check_used(window, rank, used);
}

void check_holds_all(const Window& window) {
  check(window.layout() == Layout::whole,
        "[window] '{}' holds nothing but each rank's own part: only gather works on it",
        window.name());
}

void check_told(const Window& window, size_t p, size_t used) {
  check(used <= window.part_bytes(static_cast<int>(p)),
        "[window] '{}': part {} of {} bytes tells that {} are used", window.name(), p,
        window.part_bytes(static_cast<int>(p)), used);
}

std::vector<size_t> even_parts(size_t count, size_t element_bytes, int ranks, size_t grain) {
  const size_t grains = (count + grain - 1) / grain;
  std::vector<size_t> bytes(ranks);
  auto edge = [&](size_t r) { return std::min(count, grains * r / ranks * grain); };
  for (int r = 0; r < ranks; ++r) bytes[r] = (edge(r + 1) - edge(r)) * element_bytes;
  return bytes;
}

void sum_floats(std::span<const ByteView> views, std::span<const std::span<std::byte>> outs) {
  check(outs[0].size() % sizeof(float) == 0, "[tree_sum] a part of {} bytes is not floats",
        outs[0].size());
  std::vector<const float*> parts;
  std::vector<float*> sums;
  for (ByteView view : views) parts.push_back(reinterpret_cast<const float*>(view.data()));
  for (std::span<std::byte> out : outs) sums.push_back(reinterpret_cast<float*>(out.data()));
  backend().tree_sum(parts, sums, static_cast<int64_t>(outs[0].size() / sizeof(float)));
}

Work reduce_scatter_floats(Communicator& communicator, const WindowPtr& window) {
  return communicator.exchange(
      window, [out = window->part(communicator.rank())](std::span<const ByteView> views) {
        sum_floats(views, {&out, 1});
      });
}

Work all_reduce_floats(Communicator& communicator, const WindowPtr& window) {
  return communicator.all_reduce(window, sum_floats);
}

int64_t sum_over_ranks(Communicator& communicator, int64_t mine) {
  int64_t total = 0;
  for (const auto& theirs : gather_values<int64_t>(communicator, {mine})) total += theirs[0];
  return total;
}

int64_t max_over_ranks(Communicator& communicator, int64_t mine) {
  int64_t most = mine;
  for (const auto& theirs : gather_values<int64_t>(communicator, {mine}))
    most = std::max(most, theirs[0]);
  return most;
}

}  // namespace lockstep
