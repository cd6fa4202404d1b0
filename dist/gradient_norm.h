// The norm of the mean gradient, as a tree over parameters of trees over cells: its bits depend on
// the gradient alone, not on who measured which cells. Read next: reducer.cpp.
#pragma once

#include <cmath>
#include <vector>

#include "dist/buckets.h"
#include "dist/data_parallel.h"
#include "optim/schedule.h"

namespace lockstep {

class GradientNorm {
 public:
  explicit GradientNorm(const std::vector<NamedTensor>& parameters) : parameters_(parameters) {
    for (const auto& [name, tensor] : parameters_)
      cells_.emplace_back(static_cast<size_t>(cell_count(tensor.numel())));
  }

  // Sums of squares of a parameter's cells, to be filled in.
  std::vector<double>& cells(size_t parameter) { return cells_[parameter]; }

  void finish(GradientReport& report) const {
    std::vector<double> by_parameter;
    for (size_t i = 0; i < cells_.size(); ++i) {
      by_parameter.push_back(tree_sum(cells_[i]));
      if (report.non_finite.empty() && !std::isfinite(by_parameter.back()))
        report.non_finite = parameters_[i].name;
    }
    report.norm = std::sqrt(tree_sum(by_parameter));
  }

 private:
  const std::vector<NamedTensor>& parameters_;
  std::vector<std::vector<double>> cells_;
};

}  // namespace lockstep
