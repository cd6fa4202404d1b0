// Memory of a rank in which parts from other hosts arrive for all ranks of its host, where the
// window has no place for them (Layout::own_part). It is lent for one operation at a time and kept
// for the next, so there is as much as was ever needed at once. Read next: host_messages.cpp.
#pragma once

#include <functional>
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

  // The smallest one that nobody uses, or a new one. It is in use until in_use() says otherwise.
  std::pair<std::byte*, RelayPlace> lend(size_t bytes, std::function<bool()> in_use) {
    Buffer* best = nullptr;
    for (Buffer& buffer : buffers_)
      if (buffer.place.bytes >= bytes && (!best || buffer.place.bytes < best->place.bytes) &&
          !buffer.in_use())
        best = &buffer;
    if (!best) {
      const Transport::Offered offered = transport_.offer(bytes);
      best = &buffers_.emplace_back(
          Buffer{offered.memory, {offered.handle, static_cast<uint64_t>(bytes)}, {}});
    }
    best->in_use = std::move(in_use);
    return {best->memory.get(), best->place};
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
