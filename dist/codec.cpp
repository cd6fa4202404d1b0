// The table of codecs, made from the list in core/codecs.h.
#include "dist/codec.h"

#include <array>
#include <utility>

#include "core/error.h"

namespace lockstep {

namespace {

template <class C>
std::unique_ptr<Codec> make(const CodecOptions& options) {
  const C cells(options);
  if constexpr (requires { cells.complaint(); }) {
    if (const char* complaint = cells.complaint())
      fail(Exit::config, "[codec] {} with ratio {}; {}", C::name, options.ratio, complaint);
  }
  return std::make_unique<Codec>(CellCodec(cells));
}

template <class... C>
constexpr auto rows_of(std::variant<C...>*) {
  return std::array{CodecEntry{C::name, C::help, make<C>}...};
}

constexpr auto kCodecs = rows_of(static_cast<CellCodec*>(nullptr));

}  // namespace

bool Codec::lossless() const {
  return std::visit([](const auto& c) { return c.lossless; }, cells_);
}

std::span<const CodecEntry> codec_table() {
  return kCodecs;
}

std::vector<std::string_view> codec_names() {
  std::vector<std::string_view> names;
  for (const CodecEntry& entry : kCodecs) names.push_back(entry.name);
  return names;
}

std::string codec_summary() {
  std::string help;
  for (const CodecEntry& entry : kCodecs)
    help += fmt::format("{}{}: {}", help.empty() ? "" : "; ", entry.name, entry.help);
  return help;
}

std::unique_ptr<Codec> make_codec(const std::string& name, const CodecOptions& options) {
  for (const CodecEntry& entry : kCodecs)
    if (name == entry.name) return entry.make(options);
  fail(Exit::config, "[codec] no codec \"{}\"; there are {}", name, fmt::join(codec_names(), ", "));
}

}  // namespace lockstep
