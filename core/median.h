// The middle of measured values, for whoever reports one.
#pragma once

#include <algorithm>
#include <vector>

namespace lockstep {

// Of an even number the mean of the two in the middle. At least one value.
inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  return (values[values.size() / 2] + values[(values.size() - 1) / 2]) / 2;
}

}  // namespace lockstep
