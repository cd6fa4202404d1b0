// A number with its noun, for lines that people read. Read next: error.h, through which most go.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/error.h"

namespace lockstep {

// "1 rank", "2 ranks"; `many` where an s is not all.
inline std::string plural(int64_t count, std::string_view one, std::string_view many = {}) {
  if (count == 1) return fmt::format("1 {}", one);
  return many.empty() ? fmt::format("{} {}s", count, one) : fmt::format("{} {}", count, many);
}

}  // namespace lockstep
