// Comparing ranks. Read next: host_communicator.h.
#include "dist/verify.h"

#include <xxhash.h>

#include <algorithm>

namespace lockstep {

namespace {

// Lines, the last of which ends like the others.
std::string text_of(const std::vector<std::byte>& bytes) {
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.empty() && text.back() != '\n') text += '\n';
  return text;
}

std::string_view line_at(std::string_view text, size_t at) {
  const size_t begin = at == 0 ? 0 : text.rfind('\n', at - 1) + 1;
  const size_t end = text.find('\n', at);
  return begin >= text.size() ? "(nothing)" : text.substr(begin, end - begin);
}

}  // namespace

void check_same(Communicator& communicator, std::string_view what, const std::string& lines) {
  const auto all = communicator.all_gather_bytes(std::as_bytes(std::span(lines)));
  const std::string first = text_of(all[0]);
  for (int r = 1; r < communicator.size(); ++r) {
    const std::string other = text_of(all[r]);
    if (other == first) continue;
    const size_t at =
        std::mismatch(first.begin(), first.end(), other.begin(), other.end()).first - first.begin();
    const Topology& where = communicator.topology();
    fail(Exit::config, "[{}] {} has \"{}\" where {} has \"{}\"; all ranks must run the same", what,
         where.describe(r), line_at(other, at), where.describe(0), line_at(first, at));
  }
}

std::string describe_with_hashes(std::span<const NamedTensor> tensors) {
  std::string lines;
  for (const auto& [name, t] : tensors) {
    check(t.contiguous(), "[verify] '{}' {} is not contiguous", name, to_string(t));
    const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash(XXH3_createState(),
                                                                        XXH3_freeState);
    XXH3_64bits_reset(hash.get());
    visit_bytes(
        t, [&](const void* piece, size_t bytes) { XXH3_64bits_update(hash.get(), piece, bytes); });
    lines += fmt::format("{} {} {:016x}\n", name, to_string(t), XXH3_64bits_digest(hash.get()));
  }
  return lines;
}

}  // namespace lockstep
