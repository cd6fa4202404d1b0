// Causal attention as cuDNN's operation graphs: what a cuDNN engine is then found for. The plain
// backend API, so no front end is needed; a graph is finalised without a GPU, which is how its
// structure is tested. Read next: cudnn_attention.cpp.
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace lockstep {

// Error naming the call and what cuDNN says of it, unless it succeeded.
void check_cudnn(cudnnStatus_t status, const char* what);

// Shares one backend descriptor.
class CudnnDescriptor {
 public:
  CudnnDescriptor() = default;
  explicit CudnnDescriptor(cudnnBackendDescriptorType_t type);

  CudnnDescriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       int64_t count, const void* values);
  CudnnDescriptor& set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value);
  template <class T>
  CudnnDescriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       T value) {
    return set(name, type, 1, &value);
  }
  CudnnDescriptor& finalize();
  void* get() const { return shared_.get(); }

 private:
  std::shared_ptr<void> shared_;
};

// Heads as in core/backend.h, as many of keys and values as of queries, in bf16.
struct CudnnShape {
  int64_t b, t, n_head, head_dim;
  int64_t packed() const { return 3 * n_head * head_dim; }
};

// What the memory given to an execution is.
namespace cudnn_uid {
enum : int64_t {
  q = 1,
  k,
  v,
  o,
  stats,  // stats: the log-sum-exp, [b, n_head, t] fp32
  d_o,
  dq,
  dk,
  dv,
  row_sums,  // [b, n_head, t] fp32, scratch of backward
  dq_sums,   // [b, n_head, t, head_dim] fp32, scratch, zero at first
  scale,
  minus_infinity,
  one,  // fp32, on the host
  first_virtual
};
}  // namespace cudnn_uid

// `handle` may be null where no engine will be asked for.
CudnnDescriptor cudnn_forward_graph(const CudnnShape& shape, cudnnHandle_t handle);
CudnnDescriptor cudnn_backward_graph(const CudnnShape& shape, cudnnHandle_t handle);

}  // namespace lockstep
