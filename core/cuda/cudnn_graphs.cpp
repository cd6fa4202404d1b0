// The two graphs, operation by operation. Scores are [b, h, t, t] in them and nowhere else: they
// are virtual, so a fused engine keeps them in tiles.
#include "core/cuda/cudnn_graphs.h"

#include <array>

#include "core/error.h"

namespace lockstep {

void check_cudnn(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char detail[512] = "";
  cudnnGetLastErrorString(detail, sizeof detail);
  fail(Exit::internal, "[attention] cuDNN: {} failed: {} {}", what, cudnnGetErrorString(status),
       detail);
}

CudnnDescriptor::CudnnDescriptor(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t made = nullptr;
  check_cudnn(cudnnBackendCreateDescriptor(type, &made), "cudnnBackendCreateDescriptor");
  shared_.reset(made, [](void* d) { cudnnBackendDestroyDescriptor(d); });
}

CudnnDescriptor& CudnnDescriptor::set(cudnnBackendAttributeName_t name,
                                      cudnnBackendAttributeType_t type, int64_t count,
                                      const void* values) {
  check_cudnn(cudnnBackendSetAttribute(get(), name, type, count, values),
              "cudnnBackendSetAttribute");
  return *this;
}

CudnnDescriptor& CudnnDescriptor::set(cudnnBackendAttributeName_t name,
                                      const CudnnDescriptor& value) {
  return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, value.get());
}

CudnnDescriptor& CudnnDescriptor::finalize() {
  check_cudnn(cudnnBackendFinalize(get()), "cudnnBackendFinalize");
  return *this;
}

namespace {

using Dims = std::array<int64_t, 4>;  // b, h, rows, columns

struct Node {
  CudnnDescriptor tensor;
  Dims dims;
};

Dims packed(const Dims& d) {
  return {d[1] * d[2] * d[3], d[2] * d[3], d[3], 1};
}
Dims swapped(const Dims& d) {
  return {d[0], d[1], d[3], d[2]};
}

class Graph {
 public:
  Node tensor(int64_t uid, cudnnDataType_t type, const Dims& dims, const Dims& strides,
              bool is_virtual = false, bool by_value = false) {
    CudnnDescriptor t(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    t.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type)
        .set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims.data())
        .set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data())
        .set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, uid)
        .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, int64_t{16})
        .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual)
        .set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, by_value)
        .finalize();
    return {t, dims};
  }
  Node inner(const Dims& dims, const Dims& strides, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    return tensor(next_uid_++, type, dims, strides, true);
  }
  Node inner(const Dims& dims, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    return inner(dims, packed(dims), type);
  }
  Node scalar(int64_t uid) {
    return tensor(uid, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, false, true);
  }

  // y = mode(x, b), b repeated where its dimensions are 1; selected by `mask` where there is one.
  Node pointwise(cudnnPointwiseMode_t mode, const Node& x, const Node& y, const Node* b = nullptr,
                 const Node* mask = nullptr) {
    return add_pointwise(pointwise_mode(mode, CUDNN_DATA_FLOAT).finalize(), x, y, b, mask);
  }
  // y = the index along `axis`.
  Node index(const Node& x, int64_t axis) {
    const CudnnDescriptor mode = pointwise_mode(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32)
                                     .set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis)
                                     .finalize();
    return add_pointwise(mode, x, inner(x.dims, CUDNN_DATA_INT32), nullptr, nullptr);
  }
  Node reduce(cudnnReduceTensorOp_t op, const Node& x, const Node& y) {
    CudnnDescriptor mode(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    mode.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, op)
        .set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
        .finalize();
    add(CudnnDescriptor(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
            .set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, mode)
            .set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x.tensor)
            .set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y.tensor));
    return y;
  }
  Node matmul(const Node& a, const Node& b, const Node& c) {
    CudnnDescriptor mode(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    mode.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT).finalize();
    add(CudnnDescriptor(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
            .set(CUDNN_ATTR_OPERATION_MATMUL_DESC, mode)
            .set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, a.tensor)
            .set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, b.tensor)
            .set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, c.tensor));
    return c;
  }
  Node reshape(const Node& x, const Node& y) {
    add(CudnnDescriptor(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)
            .set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x.tensor)
            .set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y.tensor));
    return y;
  }
  // s where the key is not after the query, else minus infinity.
  Node causal(const Node& s, const Node& minus_infinity) {
    const Node query = index(s, 2), key = index(s, 3);
    const Node keep =
        pointwise(CUDNN_POINTWISE_CMP_GE, query, inner(s.dims, CUDNN_DATA_BOOLEAN), &key);
    return pointwise(CUDNN_POINTWISE_BINARY_SELECT, s, inner(s.dims), &minus_infinity, &keep);
  }

  CudnnDescriptor finish(cudnnHandle_t handle) {
    std::vector<void*> operations;
    for (const CudnnDescriptor& o : operations_) operations.push_back(o.get());
    CudnnDescriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
              static_cast<int64_t>(operations.size()), operations.data());
    if (handle) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle);
    return graph.finalize();
  }

 private:
  static CudnnDescriptor pointwise_mode(cudnnPointwiseMode_t mode, cudnnDataType_t computed) {
    return CudnnDescriptor(CUDNN_BACKEND_POINTWISE_DESCRIPTOR)
        .set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode)
        .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, computed);
  }
  Node add_pointwise(const CudnnDescriptor& mode, const Node& x, const Node& y, const Node* b,
                     const Node* mask) {
    CudnnDescriptor o(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    o.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, mode)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x.tensor)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y.tensor);
    if (b) o.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b->tensor);
    if (mask) o.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, mask->tensor);
    add(o);
    return y;
  }
  void add(CudnnDescriptor operation) { operations_.push_back(operation.finalize()); }

  std::vector<CudnnDescriptor> operations_;
  int64_t next_uid_ = cudnn_uid::first_virtual;
};

// Shapes and strides that both graphs have.
struct Layouts {
  Dims rows, in_qkv, in_o, scores, statistics;

  explicit Layouts(const CudnnShape& s)
      : rows{s.b, s.n_head, s.t, s.head_dim},
        in_qkv{s.t * s.packed(), s.head_dim, s.packed(), 1},
        in_o{s.t * s.n_head * s.head_dim, s.head_dim, s.n_head * s.head_dim, 1},
        scores{s.b, s.n_head, s.t, s.t},
        statistics{s.b, s.n_head, s.t, 1} {}
};

constexpr cudnnDataType_t narrow = CUDNN_DATA_BFLOAT16, wide = CUDNN_DATA_FLOAT;

}  // namespace

CudnnDescriptor cudnn_forward_graph(const CudnnShape& shape, cudnnHandle_t handle) {
  const Layouts at(shape);
  Graph g;
  const Node q = g.tensor(cudnn_uid::q, narrow, at.rows, at.in_qkv);
  const Node k = g.tensor(cudnn_uid::k, narrow, swapped(at.rows), swapped(at.in_qkv));
  const Node v = g.tensor(cudnn_uid::v, narrow, at.rows, at.in_qkv);
  const Node o = g.tensor(cudnn_uid::o, narrow, at.rows, at.in_o);
  const Node stats = g.tensor(cudnn_uid::stats, wide, at.statistics, packed(at.statistics));
  const Node scale = g.scalar(cudnn_uid::scale), minus = g.scalar(cudnn_uid::minus_infinity);

  const Node products = g.matmul(q, k, g.inner(at.scores));
  const Node s =
      g.causal(g.pointwise(CUDNN_POINTWISE_MUL, products, g.inner(at.scores), &scale), minus);
  const Node max = g.reduce(CUDNN_REDUCE_TENSOR_MAX, s, g.inner(at.statistics));
  const Node e = g.pointwise(CUDNN_POINTWISE_EXP,
                             g.pointwise(CUDNN_POINTWISE_SUB, s, g.inner(at.scores), &max),
                             g.inner(at.scores));
  const Node sum = g.reduce(CUDNN_REDUCE_TENSOR_ADD, e, g.inner(at.statistics));
  const Node log = g.pointwise(CUDNN_POINTWISE_LOG, sum, g.inner(at.statistics));
  g.pointwise(CUDNN_POINTWISE_ADD, max, stats, &log);
  g.matmul(g.pointwise(CUDNN_POINTWISE_DIV, e, g.inner(at.scores, narrow), &sum), v, o);
  return g.finish(handle);
}

CudnnDescriptor cudnn_backward_graph(const CudnnShape& shape, cudnnHandle_t handle) {
  const Layouts at(shape);
  const auto [b, h, t, ignored] = at.scores;
  const Dims by_columns{h * t * t, t * t, 1, t};  // a square that is read transposed
  Graph g;
  const Node q = g.tensor(cudnn_uid::q, narrow, at.rows, at.in_qkv);
  const Node k = g.tensor(cudnn_uid::k, narrow, swapped(at.rows), swapped(at.in_qkv));
  const Node v = g.tensor(cudnn_uid::v, narrow, swapped(at.rows), swapped(at.in_qkv));
  const Node o = g.tensor(cudnn_uid::o, narrow, at.rows, at.in_o);
  const Node d_o = g.tensor(cudnn_uid::d_o, narrow, at.rows, at.in_o);
  const Node stats = g.tensor(cudnn_uid::stats, wide, at.statistics, packed(at.statistics));
  const Node dq = g.tensor(cudnn_uid::dq, narrow, at.rows, at.in_qkv);
  const Node dk = g.tensor(cudnn_uid::dk, narrow, at.rows, at.in_qkv);
  const Node dv = g.tensor(cudnn_uid::dv, narrow, at.rows, at.in_qkv);
  const Node row_sums = g.tensor(cudnn_uid::row_sums, wide, at.statistics, packed(at.statistics));
  const Node dq_sums = g.tensor(cudnn_uid::dq_sums, wide, at.rows, packed(at.rows));
  const Node scale = g.scalar(cudnn_uid::scale), minus = g.scalar(cudnn_uid::minus_infinity);
  const Node one = g.scalar(cudnn_uid::one);

  const Node terms = g.pointwise(CUDNN_POINTWISE_MUL, d_o, g.inner(at.rows), &o);
  const Node sums = g.reduce(CUDNN_REDUCE_TENSOR_ADD, terms, g.inner(at.statistics));
  g.pointwise(CUDNN_POINTWISE_MUL, sums, row_sums, &one);

  const Node products = g.matmul(q, k, g.inner(at.scores));
  const Node s = g.pointwise(CUDNN_POINTWISE_MUL, products, g.inner(at.scores), &scale);
  const Node shifted = g.pointwise(CUDNN_POINTWISE_SUB, s, g.inner(at.scores), &stats);
  const Node p = g.pointwise(CUDNN_POINTWISE_EXP, g.causal(shifted, minus), g.inner(at.scores));
  g.matmul(g.reshape(p, g.inner(at.scores, by_columns, narrow)), d_o, dv);

  const Node dp = g.pointwise(CUDNN_POINTWISE_SUB, g.matmul(d_o, v, g.inner(at.scores)),
                              g.inner(at.scores), &row_sums);
  const Node ds =
      g.pointwise(CUDNN_POINTWISE_MUL, g.pointwise(CUDNN_POINTWISE_MUL, dp, g.inner(at.scores), &p),
                  g.inner(at.scores), &scale);
  g.matmul(g.reshape(ds, g.inner(at.scores, by_columns, narrow)), q, dk);
  const Node keys = g.reshape(k, g.inner(at.rows, at.in_qkv));
  g.pointwise(CUDNN_POINTWISE_IDENTITY, g.matmul(ds, keys, dq_sums), dq);
  return g.finish(handle);
}

}  // namespace lockstep
