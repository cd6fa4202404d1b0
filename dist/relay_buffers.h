// Memory of a rank in which parts from other hosts arrive for all ranks of its host, where the
// window has no place for them (Layout::own_part). It is lent for one operation at a time and kept
// for the next. Sizes recur from step to step and a buffer serves its size alone, so of every size
// there are as many as were ever needed at once: memory.cpp counts them. Read next:
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

  // One that nobody uses, or a new one. It is in use until in_use() says otherwise.
  std::pair<std::byte*, RelayPlace> lend(size_t bytes, std::function<bool()> in_use) {
    auto free = std::ranges::find_if(buffers_, [bytes](const Buffer& buffer) {
      return buffer.place.bytes == bytes && !buffer.in_use();
    });
    if (free == buffers_.end()) {
      const Transport::Offered offered = transport_.offer(bytes);
      buffers_.push_back({offered.memory, {offered.handle, static_cast<uint64_t>(bytes)}, {}});
      free = std::prev(buffers_.end());
    }
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
    std::function<bool()> in_use;
  };

  Transport& transport_;
  std::vector<Buffer> buffers_;
  std::map<std::pair<int, int64_t>, std::shared_ptr<std::byte>> attached_;
};

}  // namespace lockstep
