// Ranks acting as one: a piece of work that is done on all of them or an error on all of them.
// Without it a rank that fails alone leaves the others waiting for it in their next collective.
// Read next: checkpoint.h, which is built on it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dist/communicator.h"

namespace lockstep {

// Collective. Runs `work` on every rank and returns what it returned, by rank. If it throws on any
// rank, then every rank throws the same Error: code and message of the first rank that failed, with
// that rank's name in front unless all failed alike. Where `work` itself is collective and fails in
// that, the agreement fails as well, with its own error.
std::vector<std::string> all_or_none(Communicator& communicator,
                                     const std::function<std::string()>& work);

// The same for work that only rank 0 has to do; returns its result on every rank.
std::string on_rank_0(Communicator& communicator, const std::function<std::string()>& work);

}  // namespace lockstep
