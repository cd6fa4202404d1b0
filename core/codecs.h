// Codecs: how gradients are written on the wire, and what a lossy one leaves behind. Pure functions
// of consecutive cells of one parameter; backend.h runs them where the data lie. To add one: a file
// in codecs/ and its name in the list below. Who sends which cells where is dist's matter, and sums
// are never taken here. Read next: codecs/cell.h, codecs/bf16.h, then cpu/codecs.cpp.
#pragma once

#include <variant>

#include "core/codecs/bf16.h"
#include "core/codecs/int8.h"
#include "core/codecs/none.h"
#include "core/codecs/powers.h"
#include "core/codecs/rows.h"
#include "core/codecs/sign.h"
#include "core/codecs/topk.h"

namespace lockstep {

using CellCodec =
    std::variant<codec::None, codec::Bf16, codec::Int8, codec::TopK, codec::Rows, codec::Sign>;

// Bytes of a run on the wire, multiples of 16: those at its own place, whatever is in it, so that
// runs can follow each other; and with them the most that it adds to the tail. Only `rows` does.
size_t place_bytes(const CellCodec& codec, const CodecRun& run);
size_t capacity(const CellCodec& codec, const CodecRun& run);

}  // namespace lockstep
