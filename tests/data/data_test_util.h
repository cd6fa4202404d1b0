// What the tests of data/ share beside tests/file_test_util.h: shards of a few tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/shard.h"
#include "tests/file_test_util.h"

namespace lockstep {

inline void write_shard(const std::string& path, const std::vector<int32_t>& tokens,
                        int width = 2) {
  ShardWriter writer(path, width);
  writer.append(tokens);
  writer.finish();
}

}  // namespace lockstep
