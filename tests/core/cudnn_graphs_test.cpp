// cuDNN accepts the operation graphs of attention: the real library finalises them, which needs
// neither a GPU nor a handle. What engines make of them only a GPU can tell.
#include "core/cuda/cudnn_graphs.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace lockstep {
namespace {

TEST(CudnnGraphs, AreAccepted) {
  for (const CudnnShape& shape :
       {CudnnShape{2, 1024, 12, 64}, CudnnShape{1, 77, 3, 128}, CudnnShape{4, 1, 1, 32}}) {
    EXPECT_NO_THROW(cudnn_forward_graph(shape, nullptr));
    EXPECT_NO_THROW(cudnn_backward_graph(shape, nullptr));
  }
}

TEST(CudnnGraphs, WhatCudnnRefusesSaysWhere) {
  try {
    CudnnDescriptor(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR).finalize();
    ADD_FAILURE() << "a product without operands was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()).find("[attention] cuDNN: cudnnBackendFinalize failed: "), 0u)
        << e.what();
  }
}

}  // namespace
}  // namespace lockstep
