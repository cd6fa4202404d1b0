// Sampling. Read next: trainer.cpp, which prints a sample now and then.
#include "examples/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/philox.h"

namespace lockstep {

namespace {

// Draws an index with probability proportional to exp(logit / temperature), in double; u in (0, 1).
int32_t draw(const std::vector<float>& logits, const GenerateOptions& options, double u) {
  const size_t known = options.vocab_size > 0 ? options.vocab_size : logits.size();
  std::vector<int32_t> order(std::min(known, logits.size()));
  std::iota(order.begin(), order.end(), 0);
  const size_t k = options.top_k > 0 ? std::min<size_t>(options.top_k, order.size()) : order.size();
  std::partial_sort(
      order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k), order.end(),
      [&](int32_t a, int32_t b) { return std::pair(-logits[a], a) < std::pair(-logits[b], b); });
  if (options.temperature <= 0) return order[0];
  std::vector<double> cumulative(k);
  double sum = 0;
  for (size_t i = 0; i < k; ++i)
    cumulative[i] = sum += std::exp((logits[order[i]] - logits[order[0]]) / options.temperature);
  const auto at = std::upper_bound(cumulative.begin(), cumulative.end() - 1, u * sum);
  return order[at - cumulative.begin()];
}

}  // namespace

std::vector<int32_t> generate(Gpt& model, std::vector<int32_t> text,
                              const GenerateOptions& options) {
  check(!text.empty(), "[generate] empty prompt; at least one token is right");
  const Philox random(stream_key(options.seed, "generate"));
  for (int64_t i = 0; i < options.tokens; ++i) {
    const int64_t seen = std::min<int64_t>(std::ssize(text), model.config().max_seq_len);
    const std::vector<int32_t> window(text.end() - seen, text.end());
    const Tensor logits = model.next_token_logits(Tensor::from(window, {1, seen}));
    text.push_back(draw(logits.to_vector<float>(), options, to_open_unit(random(i)[0])));
  }
  return text;
}

}  // namespace lockstep
