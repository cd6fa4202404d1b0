// Table lookup. The gradient adds each output row to its table row, in the order of positions.
#include "core/ops/embedding.h"

#include "core/ops/common.h"

namespace lockstep {

void check_ids(const char* op, const Tensor& ids, int64_t least, int64_t vocab) {
  check(ids.defined() && ids.dtype() == DType::i32 && ids.contiguous(),
        "[{}] ids {}; contiguous i32 is right", op, to_string(ids));
  const int32_t* id = ids.data<int32_t>();
  for (int64_t i = 0; i < ids.numel(); ++i)
    if (id[i] < least || id[i] >= vocab)
      fail(Exit::data,
           "[{}] id {} at position {} of {}; {}..{} is right: the data was made with another "
           "tokenizer, or model.vocab_size is too small",
           op, id[i], i, to_string(ids), least, vocab - 1);
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
