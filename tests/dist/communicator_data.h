// What tests of communicators write and look for: bytes that tell who wrote them where and when,
// and the traffic that operations must report. Read next: communicator_test.cpp.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "dist/communicator.h"

namespace lockstep {

// Part sizes that are uneven and include an empty part as soon as there are three ranks.
inline std::vector<size_t> uneven_parts(int ranks, size_t unit) {
  std::vector<size_t> parts;
  for (int p = 0; p < ranks; ++p) parts.push_back(unit * ((p * 2 + 1) % 5 % 4) + (p == 1 ? 4 : 0));
  return parts;
}

// A byte that tells who wrote it where and when.
inline std::byte mark(int rank, size_t offset, int generation) {
  return static_cast<std::byte>(rank * 101 + offset * 7 + generation * 31);
}

inline void fill(Communicator& c, Window& window, int generation) {
  for (size_t i = 0; i < window.bytes(); ++i) window.mine()[i] = mark(c.rank(), i, generation);
}

inline void expect_marks(ByteView bytes, int rank, size_t offset, int generation,
                         const char* what) {
  for (size_t i = 0; i < bytes.size(); ++i)
    ASSERT_EQ(bytes[i], mark(rank, offset + i, generation))
        << what << ": byte " << i << " of rank " << rank << ", generation " << generation;
}

// Each rank r saw shown(r) bytes of mine, and so many crossed to other hosts.
inline void expect_traffic(Communicator& c, const Work& work,
                           const std::function<size_t(int)>& shown, size_t to_hosts) {
  size_t to_ranks = 0;
  for (int r = 0; r < c.size(); ++r)
    if (r != c.rank()) to_ranks += shown(r);
  EXPECT_EQ(work.traffic().to_ranks, to_ranks);
  EXPECT_EQ(work.traffic().to_hosts, to_hosts);
}

// The sum of bytes(r) over the ranks of other hosts.
inline size_t on_other_hosts(Communicator& c, const std::function<size_t(int)>& bytes) {
  size_t sum = 0;
  for (int r = 0; r < c.size(); ++r)
    if (!c.topology().same_host(r)) sum += bytes(r);
  return sum;
}

// Used bytes of part p on a rank: anything from none to all of it.
inline size_t used_bytes(int rank, int part, size_t bytes) {
  return bytes * ((rank * 3 + part) % 5) / 4;
}

// Of very different magnitudes, so that every order of adding them has bits of its own.
inline std::vector<float> wild_floats(size_t count, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random) * std::exp(5 * normal(random));
  return values;
}

}  // namespace lockstep
