// A power of two for each element, near the root of its second moment, by which gradients are
// divided before a codec that treats the elements of a cell alike. One byte each: the exponent plus
// 127, as in an fp32; 0 where the second moment is 0, whose elements count as zero. So nothing is
// rounded on the way there and back, and all devices have the same bits. Read next: cell.h.
#pragma once

#include "core/codecs/cell.h"

namespace lockstep::codec {

// Of v >= 0: sqrt(v) is within a factor of sqrt(2) of the power (more, if v is subnormal).
LOCKSTEP_HD inline uint8_t root_power(float v) {
  const uint32_t bits = bits_of(v);
  return static_cast<uint8_t>(bits == 0 ? 0 : (bits >> 24) + 64);
}

// The power or its inverse, as a float.
LOCKSTEP_HD inline float power(uint8_t exponent, bool inverse) {
  const uint32_t biased = exponent == 0 ? 0u : inverse ? 254u - exponent : exponent;
  return std::bit_cast<float>(biased << 23);
}

}  // namespace lockstep::codec
