// Are all ranks the same run? Configs, builds, parameter names, shapes and weights are compared as
// lines of text, so that an error can say which line differs, and between which ranks. Replicas
// that drift apart train on without a sign; nothing else would notice. Read next:
// host_communicator.h.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/tensor.h"
#include "dist/communicator.h"

namespace lockstep {

// Collective. Exit::config if `lines` are not the same on all ranks; the error, the same on
// every rank, names `what`, the first rank that differs from rank 0, and the first line that
// differs.
void check_same(Communicator& communicator, std::string_view what, const std::string& lines);

// One line per tensor: name, type, shape, and the xxHash3 of its bytes (contiguous tensors only).
std::string describe_with_hashes(std::span<const NamedTensor> tensors);

}  // namespace lockstep
