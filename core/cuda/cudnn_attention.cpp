// Attention by cuDNN: plans for one shape, made when training starts. Of the engines that cuDNN's
// heuristic proposes, in its order, the first that is deterministic and can be built is taken, so
// the choice depends on library, device and shape, never on timing. Read next: cuda_backend.cpp.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/cuda/cudnn_graphs.h"
#include "core/cuda/fused_attention.h"
#include "core/scratch.h"

namespace lockstep {

namespace {

struct Plan {
  CudnnDescriptor execution;
  int64_t workspace_bytes;
};

// As many as there are.
std::vector<CudnnDescriptor> proposed_engines(const CudnnDescriptor& graph,
                                              cudnnBackendHeurMode_t mode) {
  CudnnDescriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)
      .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
  if (cudnnBackendFinalize(heuristic.get()) != CUDNN_STATUS_SUCCESS) return {};
  int64_t count = 0;
  check_cudnn(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr),
              "counting engines");
  std::vector<CudnnDescriptor> configs;
  std::vector<void*> pointers;
  for (int64_t i = 0; i < count; ++i) {
    configs.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    pointers.push_back(configs.back().get());
  }
  check_cudnn(
      cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                               CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, pointers.data()),
      "listing engines");
  configs.resize(static_cast<size_t>(count));
  return configs;
}

bool is_deterministic(const CudnnDescriptor& config) {
  CudnnDescriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  void* pointer = engine.get();
  int64_t count = 0;
  check_cudnn(cudnnBackendGetAttribute(config.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &pointer),
              "reading an engine");
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  check_cudnn(cudnnBackendGetAttribute(engine.get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                       CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT,
                                       &count, notes),
              "reading an engine's notes");
  return std::find(notes, notes + count, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) == notes + count;
}

std::optional<Plan> make_plan(cudnnHandle_t handle, const CudnnDescriptor& graph) {
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK})
    for (const CudnnDescriptor& config : proposed_engines(graph, mode)) {
      if (!is_deterministic(config)) continue;
      Plan plan{CudnnDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR), 0};
      plan.execution.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle)
          .set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
      if (cudnnBackendFinalize(plan.execution.get()) != CUDNN_STATUS_SUCCESS) continue;
      int64_t count = 0;
      check_cudnn(
          cudnnBackendGetAttribute(plan.execution.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                   CUDNN_TYPE_INT64, 1, &count, &plan.workspace_bytes),
          "reading a plan's workspace");
      return plan;
    }
  return {};
}

struct Handle {
  cudnnHandle_t handle = nullptr;
  explicit Handle(CUstream_st* stream) {
    check_cudnn(cudnnCreate(&handle), "cudnnCreate");
    check_cudnn(cudnnSetStream(handle, stream), "cudnnSetStream");
  }
  ~Handle() { cudnnDestroy(handle); }
  Handle(const Handle&) = delete;
};

class CudnnAttention : public FusedAttention {
 public:
  CudnnAttention(CUstream_st* stream, const CudnnShape& shape)
      : stream_(stream),
        shape_(shape),
        handle_(stream),
        scale_(1.0f / std::sqrt(static_cast<float>(shape.head_dim))),
        forward_(make_plan(handle_.handle, cudnn_forward_graph(shape, handle_.handle))),
        backward_(make_plan(handle_.handle, cudnn_backward_graph(shape, handle_.handle))) {}

  const char* missing() const { return !forward_ ? "forward" : !backward_ ? "backward" : nullptr; }

  std::string description() const override {
    const size_t v = cudnnGetVersion();
    return fmt::format("cuDNN {}.{}.{}", v / 10000, v / 100 % 100, v % 100);
  }

  bool fits(const Tensor& qkv, const Heads& heads) const override {
    return qkv.dtype() == DType::bf16 && qkv.dim(0) == shape_.b && qkv.dim(1) == shape_.t &&
           heads.n_head == shape_.n_head && heads.n_kv_head == shape_.n_head &&
           heads.head_dim == shape_.head_dim && reinterpret_cast<uintptr_t>(qkv.raw()) % 16 == 0;
  }

  void forward(const Tensor& qkv, Tensor& o, Tensor& lse) override {
    using namespace cudnn_uid;
    run(*forward_, {{q, part(qkv, 0)},
                    {k, part(qkv, 1)},
                    {v, part(qkv, 2)},
                    {cudnn_uid::o, o.raw()},
                    {stats, lse.raw()}});
  }

  void backward(const Tensor& qkv, const Tensor& o, const Tensor& lse, const Tensor& d_o,
                Tensor& dqkv) override {
    using namespace cudnn_uid;
    const int64_t rows = shape_.b * shape_.n_head * shape_.t;
    const Scratch<float> sums(rows), accumulated(rows * shape_.head_dim);
    const auto bytes = static_cast<size_t>(rows * shape_.head_dim) * sizeof(float);
    const cudaError_t cleared = cudaMemsetAsync(accumulated.data(), 0, bytes, stream_);
    check(cleared == cudaSuccess, "[attention] cudaMemsetAsync failed: {}",
          cudaGetErrorString(cleared));
    run(*backward_, {{q, part(qkv, 0)},
                     {k, part(qkv, 1)},
                     {v, part(qkv, 2)},
                     {cudnn_uid::o, o.raw()},
                     {stats, lse.raw()},
                     {cudnn_uid::d_o, d_o.raw()},
                     {dq, part(dqkv, 0)},
                     {dk, part(dqkv, 1)},
                     {dv, part(dqkv, 2)},
                     {row_sums, sums.data()},
                     {dq_sums, accumulated.data()},
                     {one, const_cast<float*>(&one_)}});
  }

 private:
  struct Operand {
    int64_t uid;
    void* memory;
  };

  // Queries, keys or values of packed heads.
  void* part(const Tensor& packed, int64_t i) const {
    return packed.data<bf16>() + i * shape_.n_head * shape_.head_dim;
  }

  void run(const Plan& plan, std::vector<Operand> operands) const {
    operands.push_back({cudnn_uid::scale, const_cast<float*>(&scale_)});
    operands.push_back({cudnn_uid::minus_infinity, const_cast<float*>(&minus_infinity_)});
    std::vector<int64_t> uids;
    std::vector<void*> pointers;
    for (const Operand& o : operands) uids.push_back(o.uid), pointers.push_back(o.memory);
    const auto count = static_cast<int64_t>(uids.size());
    const Scratch<std::byte> workspace(plan.workspace_bytes);
    const CudnnDescriptor pack =
        CudnnDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
            .set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, uids.data())
            .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers.data())
            .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR,
                 static_cast<void*>(workspace.data()))
            .finalize();
    check_cudnn(cudnnBackendExecute(handle_.handle, plan.execution.get(), pack.get()),
                "cudnnBackendExecute");
  }

  CUstream_st* stream_;
  const CudnnShape shape_;
  const Handle handle_;
  const float scale_, minus_infinity_ = -INFINITY, one_ = 1.0f;
  const std::optional<Plan> forward_, backward_;
};

}  // namespace

std::unique_ptr<FusedAttention> make_fused_attention(CUstream_st* stream, const Heads& heads,
                                                     int64_t b, int64_t t, std::string& reason) {
  if (heads.n_head != heads.n_kv_head)
    reason = "cuDNN's graph here has as many key heads as query heads";
  else if (heads.head_dim % 8 != 0 || heads.head_dim > 128)
    reason = fmt::format("cuDNN wants heads of a multiple of 8 up to 128, not {}", heads.head_dim);
  else
    try {
      auto attention =
          std::make_unique<CudnnAttention>(stream, CudnnShape{b, t, heads.n_head, heads.head_dim});
      if (!attention->missing()) return attention;
      reason = fmt::format("{} has no deterministic engine for {}", attention->description(),
                           attention->missing());
    } catch (const Error& e) {
      reason = e.what();
    }
  return nullptr;
}

}  // namespace lockstep
