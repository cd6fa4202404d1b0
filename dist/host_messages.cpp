// What an operation looks at on its host, and what it sends to other hosts and receives from them.
// Within a host nothing is copied but what came from outside. Between hosts: a part goes straight
// to the rank that needs it, once per host where several do or where several contribute to a sum.
// Read next: device_communicator.h.
#include <map>

#include "dist/host_operation.h"

namespace lockstep {

// Looks at what the peers of my host show me, and at what I show them: that is all there is to do
// within a host. Messages to and from other hosts are posted.
void HostCommunicator::look_and_post(Operation& operation) {
  operation.window->received.resize(size());
  operation.views.assign(operation.folds ? topology_.hosts : size(), {});
  switch (operation.kind) {
    case Kind::exchange:
    case Kind::combine:
      if (operation.folds)
        post_folded(operation);
      else
        post_exchange(operation);
      break;
    case Kind::gather:
    case Kind::collect:
      post_gather(operation);
      break;
    case Kind::broadcast:
      post_broadcast(operation);
      break;
    case Kind::reclaim:
    case Kind::call:
      break;
  }
  if (operation.kind == Kind::combine) operation.window->first_half = operation.traffic;
  if (!operation.relays || operation.receives.empty()) deliver(operation);
}

void HostCommunicator::post_exchange(Operation& operation) {
  HostWindow& window = *operation.window;
  const int me = rank();
  for (int r = 0; r < size(); ++r) {
    if (r != me) operation.traffic.to_ranks += operation.used_bytes(r);
    if (window.mapped(r)) {
      operation.views[r] = window.part_of(r, me);
      continue;
    }
    operation.views[r] = window.buffer(r, window.part_bytes(me));
    receive(operation, r, window.received[r]);
    send(operation, r, operation.used_of(r), window.part_bytes(r));
  }
}

// Of every other host, one rank sends me what all its ranks have for my part. What I send in return
// has to be folded first (fold_for_others).
void HostCommunicator::post_folded(Operation& operation) {
  HostWindow& window = *operation.window;
  const int me = rank();
  for (int r = 0; r < size(); ++r)
    if (r != me) operation.traffic.to_ranks += operation.used_bytes(r);
  for (int host = 0; host < topology_.hosts; ++host) {
    if (host == my_host()) continue;
    const int from = partner(me, host);
    operation.views[host] = window.buffer(from, window.part_bytes(me));
    receive(operation, from, window.received[from]);
  }
}

// A part goes once to every other host, where one rank hands it on to its peers.
void HostCommunicator::post_gather(Operation& operation) {
  HostWindow& window = *operation.window;
  const int me = rank();
  const bool all_reduce = operation.kind == Kind::collect;
  if (all_reduce) operation.traffic = window.first_half;
  operation.relays = topology_.hosts > 1;
  const ByteView mine = operation.used_of(me);
  operation.traffic.to_ranks += mine.size() * (size() - 1);
  for (int r = 0; r < size(); ++r) {
    if (window.mapped(r)) {
      operation.views[r] = window.part_of(all_reduce ? me : r, r);
      continue;
    }
    if (partner(me, topology_.host_of[r]) == r) send(operation, r, mine, window.part_bytes(me));
    const bool whole = window.layout() == Layout::whole, to_me = partner(r, my_host()) == me;
    if (!whole && !to_me) continue;  // find_relayed() will know
    const std::span<std::byte> place = whole ? window.part(r) : lend_relay(operation, r);
    operation.views[r] = place;
    if (to_me) receive(operation, r, place);
  }
}

// Where a window has no place for it, what this rank hands on to its peers needs some.
void HostCommunicator::prepare_to_gather(std::span<const WindowPtr> windows) {
  std::map<size_t, size_t> needed;  // how many of which size
  for (const WindowPtr& window : windows)
    for (int r = 0; window->layout() == Layout::own_part && r < size(); ++r)
      if (!topology_.same_host(r) && partner(r, my_host()) == rank())
        ++needed[window->part_bytes(r)];
  call([&] {
    for (const auto& [bytes, count] : needed) relays_.reserve(bytes, count);
  });
}

// Lent until all ranks of my host have read it.
std::span<std::byte> HostCommunicator::lend_relay(Operation& operation, int from) {
  const auto in_use = [this, window = operation.window, number = operation.number] {
    return std::ranges::any_of(ranks_of_[my_host()], [&](int r) {
      return window->header(r).consumed.load(std::memory_order_acquire) < number;
    });
  };
  HostWindow& window = *operation.window;
  const size_t bytes = window.part_bytes(from);
  if (bytes == 0) return {};
  const auto [memory, place] = relays_.lend(bytes, in_use);
  window.relay_place(rank(), from) = place;
  return {memory, bytes};
}

// What peers received for me too. They have delivered, so the places stand.
void HostCommunicator::find_relayed(Operation& operation) {
  HostWindow& window = *operation.window;
  for (int r = 0; r < size(); ++r) {
    const int by = partner(r, my_host());
    const size_t bytes = window.part_bytes(r);
    if (window.mapped(r) || by == rank() || bytes == 0) continue;
    operation.views[r] = {relays_.find(by, window.relay_place(by, r)), bytes};
  }
}

void HostCommunicator::post_broadcast(Operation& operation) {
  HostWindow& window = *operation.window;
  const int me = rank(), root = operation.root;
  if (window.mapped(root)) {
    operation.views[root] = window.of(root);
  } else {
    operation.relays = true;
    operation.views[root] = window.mine();
    if (partner(root, my_host()) == me) receive(operation, root, window.mine());
  }
  if (me != root) return;
  operation.traffic.to_ranks += window.bytes() * (size() - 1);
  for (int host = 0; host < topology_.hosts; ++host)
    if (host != my_host()) send(operation, partner(me, host), window.mine(), window.bytes());
}

// `capacity`: what the receiver has room for, since it does not know how much comes.
void HostCommunicator::send(Operation& operation, int to, ByteView bytes, size_t capacity) {
  if (capacity == 0) return;
  operation.traffic.to_hosts += bytes.size();
  operation.sends.push_back({to, transport_->send(to, operation.window->tag, bytes, capacity)});
  messages_changed_ = std::chrono::steady_clock::now();
}

void HostCommunicator::receive(Operation& operation, int from, std::span<std::byte> place) {
  if (place.empty()) return;
  operation.receives.push_back({from, transport_->receive(from, operation.window->tag, place)});
  messages_changed_ = std::chrono::steady_clock::now();
  if (operation.relays && operation.window->layout() == Layout::whole)
    operation.to_deliver.push_back(place);
}

// The rank of `host` that deals with rank r of another host: different ones for different r.
int HostCommunicator::partner(int r, int host) const {
  return ranks_of_[host][r % ranks_of_[host].size()];
}

bool HostCommunicator::shown_by_all(const Operation& operation) const {
  for (int r : ranks_of_[my_host()]) {
    const Header& header = operation.window->header(r);
    if (header.published.load(std::memory_order_acquire) < operation.number) return false;
  }
  return true;
}

// What the ranks of my host have for part p, combined, replaces what I have for it. Nobody else
// looks at that: of every part, one rank of a host reads what the others have.
void HostCommunicator::fold_part(const Operation& operation, int p) {
  HostWindow& window = *operation.window;
  std::vector<ByteView> views;
  for (int r : ranks_of_[my_host()])
    views.push_back(window.part_of(r, p).first(operation.used_bytes(p)));
  const std::span<std::byte> out = operation.used_of(p);
  window.fold()(views, {&out, 1});
}

void HostCommunicator::fold_for_others(Operation& operation) {
  HostWindow& window = *operation.window;
  for (int r = 0; r < size(); ++r) {
    if (window.mapped(r) || partner(r, my_host()) != rank()) continue;
    fold_part(operation, r);
    send(operation, r, operation.used_of(r), window.part_bytes(r));
  }
  if (operation.kind == Kind::combine) window.first_half = operation.traffic;
  operation.folded = true;
}

// Hands what I received on to my peers, who have begun this operation and leave that place alone.
void HostCommunicator::deliver(Operation& operation) {
  HostWindow& window = *operation.window;
  for (const auto piece : operation.to_deliver) {
    const size_t offset = piece.data() - window.mine().data();
    for (const auto place : window.everywhere(offset, piece.size())) copy(piece, place);
  }
  window.header(rank()).delivered.store(operation.number, std::memory_order_release);
  operation.delivered = true;
  ring_peers();
}

}  // namespace lockstep
