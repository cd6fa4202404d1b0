// Table lookup. The gradient adds each output row to its table row, in the order of positions.
#include "core/ops/embedding.h"

#include "core/ops/common.h"

namespace lockstep {

void check_ids(const char* op, const Tensor& ids, int64_t least, int64_t vocab) {
  check(ids.defined() && ids.dtype() == DType::i32 && ids.contiguous(),
        "[{}] ids {}; contiguous i32 is right", op, to_string(ids));
  if (ids.storage()->memory().on_host())
    check_ids(op, std::span(ids.data<int32_t>(), ids.numel()), ids.shape(), least, vocab);
}

void check_ids(const char* op, std::span<const int32_t> ids, const Shape& shape, int64_t least,
               int64_t vocab) {
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < least || ids[i] >= vocab)
      fail(Exit::data,
           "[{}] id {} at position {} of i32{}; {}..{} is right: the data was made with another "
           "tokenizer, or model.vocab_size is too small",
           op, ids[i], i, to_string(shape), least, vocab - 1);
}

Tensor embedding(const Tensor& table, const Tensor& ids) {
  check_float("embedding", "table", table);
  check(table.ndim() == 2 && table.contiguous(), "[embedding] table {}; contiguous [v, d] is right",
        to_string(table));
  check_ids("embedding", ids, 0, table.dim(0));
  Shape shape = ids.shape();
  shape.push_back(table.dim(1));
  Tensor y = Tensor::empty({ids.numel(), table.dim(1)}, table.dtype());
  const Tensor flat = ids.view({ids.numel()});
  backend().embedding(table, flat, y);
  return record("embedding", y.view(std::move(shape)), {table},
                [flat](const Tensor& dy, Grads& grads) {
                  write_f32(grads[0], [&](Tensor& dtable, bool accumulate) {
                    backend().embedding_grad(flat, as_rows(dy), dtable, accumulate);
                  });
                });
}

}  // namespace lockstep
