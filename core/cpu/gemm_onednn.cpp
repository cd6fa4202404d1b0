// Matrix products by oneDNN's matmul primitive. A primitive is built once per shape and kept by the
// thread that uses it: one object run by two threads at once gives wrong results. Fp32 stays fp32
// whatever DNNL_DEFAULT_FPMATH_MODE says.
#include "core/cpu/gemm_onednn.h"

#include <array>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "core/matrix.h"
#include "core/parallel.h"
#include "core/scratch.h"

namespace lockstep {

namespace {

using Dims = dnnl::memory::dims;

dnnl::memory::data_type dnnl_type(DType t) {
  check(t == DType::f32 || t == DType::bf16, "[gemm] {} operand; f32 and bf16 are right",
        name_of(t));
  return t == DType::f32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

dnnl::memory::desc desc_of(const Matrix& m) {
  return {Dims{m.batch, m.rows, m.columns}, dnnl_type(m.type),
          Dims{m.batch_stride, m.row_stride, m.column_stride}};
}

// A primitive with its operands, whose addresses are set for each call.
struct Plan {
  dnnl::matmul primitive;
  dnnl::memory scratchpad;
  std::unordered_map<int, dnnl::memory> arguments;
  int64_t scratch_bytes;
};

// Alpha is the first post-operation.
constexpr int alpha_argument = DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1;

dnnl::engine& engine() {
  static dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

Plan make_plan(const Matrix& a, const Matrix& b, const Matrix& out, const GemmOptions& options) {
  const auto f32 = dnnl::memory::data_type::f32;
  const dnnl::memory::desc one({1, 1, 1}, f32, Dims{1, 1, 1});
  dnnl::memory::desc bias;
  dnnl::primitive_attr attr;
  attr.set_fpmath_mode(dnnl::fpmath_mode::strict);
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  dnnl::post_ops post;
  // With a factor read at run time the bias is added after it; oneDNN's own bias comes before.
  const bool bias_after = options.bias && options.alpha;
  if (options.bias)
    bias = dnnl::memory::desc({1, 1, out.columns}, dnnl_type(options.bias->dtype()),
                              Dims{out.columns, out.columns, 1});
  // A product by a tensor of one element: oneDNN's run-time output scale has no fast kernel.
  if (options.alpha) post.append_binary(dnnl::algorithm::binary_mul, one);
  if (bias_after) post.append_binary(dnnl::algorithm::binary_add, bias);
  if (options.accumulate) post.append_sum(1.0f);
  attr.set_post_ops(post);

  const auto matmul = options.bias && !bias_after
                          ? dnnl::matmul::desc(desc_of(a), desc_of(b), bias, desc_of(out))
                          : dnnl::matmul::desc(desc_of(a), desc_of(b), desc_of(out));
  const dnnl::matmul::primitive_desc pd(matmul, attr, engine());
  const auto memory = [](const dnnl::memory::desc& d) {
    return dnnl::memory(d, engine(), DNNL_MEMORY_NONE);
  };
  Plan plan{dnnl::matmul(pd),
            memory(pd.scratchpad_desc()),
            {},
            static_cast<int64_t>(pd.scratchpad_desc().get_size())};
  plan.arguments = {{DNNL_ARG_SRC, memory(desc_of(a))},
                    {DNNL_ARG_WEIGHTS, memory(desc_of(b))},
                    {DNNL_ARG_DST, memory(desc_of(out))},
                    {DNNL_ARG_SCRATCHPAD, plan.scratchpad}};
  if (options.bias)
    plan.arguments[bias_after ? DNNL_ARG_ATTR_MULTIPLE_POST_OP(1) | DNNL_ARG_SRC_1
                              : DNNL_ARG_BIAS] = memory(bias);
  if (options.alpha) plan.arguments[alpha_argument] = memory(one);
  return plan;
}

// Everything a primitive was specialised for, the number of threads included.
using Key = std::array<int64_t, 16>;

Key key_of(const Matrix& a, const Matrix& b, const Matrix& out, const GemmOptions& options) {
  const auto code = [](DType t) { return static_cast<int64_t>(t); };
  return {out.batch,
          out.rows,
          out.columns,
          a.columns,
          a.batch,
          a.batch_stride,
          a.row_stride,
          a.column_stride,
          b.batch,
          b.batch_stride,
          b.row_stride,
          b.column_stride,
          code(a.type) * 256 + code(out.type),
          num_threads(),
          options.bias ? code(options.bias->dtype()) : -1,
          options.alpha != nullptr ? 2 + options.accumulate : 0 + options.accumulate};
}

Plan& plan_for(const Matrix& a, const Matrix& b, const Matrix& out, const GemmOptions& options) {
  thread_local std::map<Key, Plan> plans;
  constexpr size_t most = 1024;  // generation sees a new shape for every length
  const Key key = key_of(a, b, out, options);
  const auto found = plans.find(key);
  if (found != plans.end()) return found->second;
  if (plans.size() >= most) plans.clear();
  return plans.emplace(key, make_plan(a, b, out, options)).first->second;
}

}  // namespace

Bf16Products onednn_bf16() {
  const auto has = [all = static_cast<unsigned>(dnnl::get_effective_cpu_isa())](dnnl::cpu_isa isa) {
    const auto bits = static_cast<unsigned>(isa);
    return (all & bits) == bits;
  };
  if (has(dnnl::cpu_isa::avx512_core_amx)) return Bf16Products::fast;
  return has(dnnl::cpu_isa::avx512_core) ? Bf16Products::slow : Bf16Products::none;
}

void onednn_gemm(const Tensor& a, const Tensor& b, Tensor& out, const GemmOptions& options) {
  const Matrix a_matrix(a), b_matrix(b), out_matrix(out);
  try {
    Plan& plan = plan_for(a_matrix, b_matrix, out_matrix, options);
    const Scratch<std::byte> scratch(plan.scratch_bytes);
    plan.scratchpad.set_data_handle(scratch.data());
    for (auto& [argument, memory] : plan.arguments) {
      if (argument == DNNL_ARG_SRC)
        memory.set_data_handle(a.raw());
      else if (argument == DNNL_ARG_WEIGHTS)
        memory.set_data_handle(b.raw());
      else if (argument == DNNL_ARG_DST)
        memory.set_data_handle(out.raw());
      else if (argument == alpha_argument)
        memory.set_data_handle(options.alpha->raw());
      else if (argument != DNNL_ARG_SCRATCHPAD)
        memory.set_data_handle(options.bias->raw());
    }
    thread_local dnnl::stream stream(engine());
    plan.primitive.execute(stream, plan.arguments);
  } catch (const dnnl::error& e) {
    fail(Exit::internal, "[gemm] oneDNN refused {} x {} to {}: {}", to_string(a), to_string(b),
         to_string(out), e.what());
  }
}

}  // namespace lockstep
