// Memory of a rank in which parts from other hosts arrive for all ranks of its host, where the
// window has no place for them (Layout::own_part). It is lent for one operation at a time and kept
// for the next. Sizes recur from step to step and a buffer serves its size alone, so of every size
// there are as many as are ever needed at once: from the start if someone said how many
// (Communicator::prepare_to_gather), else when it turns out. memory.cpp counts them. Read next:
// host_messages.cpp.
#pragma once

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "dist/transport.h"

namespace lockstep {

// What peers need to know to find it.
struct RelayPlace {
  int64_t handle;
  uint64_t bytes;  // of the whole buffer
};

class RelayBuffers {
 public:
  explicit RelayBuffers(Transport& transport) : transport_(transport) {}

  // At least `count` of this size, which may be none at all.
  void reserve(size_t bytes, size_t count) {
    const auto there = static_cast<size_t>(
        std::ranges::count(buffers_, bytes, [](const Buffer& b) { return b.place.bytes; }));
    for (size_t i = there; i < count && bytes > 0; ++i) add(bytes);
  }

  // One that nobody uses, or a new one. It is in use until in_use() says otherwise.
  std::pair<std::byte*, RelayPlace> lend(size_t bytes, std::function<bool()> in_use) {
    auto free = std::ranges::find_if(buffers_, [bytes](const Buffer& buffer) {
      return buffer.place.bytes == bytes && !(buffer.in_use && buffer.in_use());
    });
    if (free == buffers_.end()) free = add(bytes);
    free->in_use = std::move(in_use);
    return {free->memory.get(), free->place};
  }

  size_t bytes() const {
    size_t sum = 0;
    for (const Buffer& buffer : buffers_) sum += buffer.place.bytes;
    return sum;
  }

  // That of a peer.
  const std::byte* find(int peer, const RelayPlace& place) {
    auto& memory = attached_[{peer, place.handle}];
    if (!memory) memory = transport_.attach(peer, place.handle, place.bytes);
    return memory.get();
  }

 private:
  struct Buffer {
    std::shared_ptr<std::byte> memory;
    RelayPlace place;
    std::function<bool()> in_use;  // null: it was never lent
  };

  std::vector<Buffer>::iterator add(size_t bytes) {
    const Transport::Offered offered = transport_.offer(bytes);
    buffers_.push_back({offered.memory, {offered.handle, static_cast<uint64_t>(bytes)}, {}});
    return std::prev(buffers_.end());
  }

  Transport& transport_;
  std::vector<Buffer> buffers_;
  std::map<std::pair<int, int64_t>, std::shared_ptr<std::byte>> attached_;
};

}  // namespace lockstep
