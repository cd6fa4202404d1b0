// What tests of DataParallel give it, where the gradients matter and no model does: parameters,
// gradients of one value, and the configs to try. The loss is the sum of parameter * data, so data
// are the gradient. Read next: data_parallel_promises_test.cpp.
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "core/backend.h"
#include "core/ops.h"
#include "dist/data_parallel.h"
#include "tests/dist/worlds.h"

namespace lockstep {

inline const LocalWorlds few = {{1, 2, 3}, {0, 1}};

inline std::vector<NamedTensor> parameters_of(const std::vector<int64_t>& sizes) {
  std::vector<NamedTensor> parameters;
  for (int64_t size : sizes)
    parameters.push_back(
        {fmt::format("p{}", parameters.size()), Tensor::zeros({size}).set_requires_grad(true)});
  return parameters;
}

// A backward pass in which the parameters of `order` get their gradients, the last one first: all
// elements `value`.
inline void give(const std::vector<NamedTensor>& parameters, const std::vector<size_t>& order,
                 float value = 1) {
  Tensor loss;
  for (size_t i : order) {
    Tensor data = Tensor::empty(parameters[i].tensor.shape());
    backend().fill(data, value);
    const Tensor term = sum(mul(parameters[i].tensor, data));
    loss = loss.defined() ? add(loss, term) : term;
  }
  backward(loss);
}

inline std::vector<size_t> all_of(const std::vector<NamedTensor>& parameters) {
  std::vector<size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

inline DistConfig naive() {
  DistConfig config;
  config.reducer = "naive";
  return config;
}

inline DistConfig bucketed(double bucket_mb = 0.001, bool overlap = true) {
  DistConfig config;
  config.bucket_mb = bucket_mb;
  config.overlap = overlap;
  return config;
}

inline std::vector<DistConfig> all_configs() {
  return {naive(), bucketed(), bucketed(25), bucketed(0.001, false)};
}

// Every element of gradient i on this rank.
inline void expect_gradient(const DataParallel& exchange, size_t i, float expected) {
  for (float x : exchange.gradient(i).to_vector<float>())
    ASSERT_EQ(x, expected) << "parameter " << i;
}

}  // namespace lockstep
