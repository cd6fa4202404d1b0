// The rules of the `data` section. Read next: dataset.cpp.
#include "data/config.h"

#include "core/error.h"

namespace lockstep {

DataFormat parse_data_format(const std::string& name) {
  if (name == "llmc") return DataFormat::llmc;
  if (name == "nanogpt_u16") return DataFormat::nanogpt_u16;
  if (name == "synthetic") return DataFormat::synthetic;
  fail(Exit::config, "[data.format] is \"{}\"; use llmc, nanogpt_u16 or synthetic", name);
}

void validate(const DataConfig& config) {
  const DataFormat format = parse_data_format(config.format);
  if (format == DataFormat::synthetic) {
    if (!config.train.empty() || !config.val.empty())
      fail(Exit::config,
           "[data.format] synthetic reads no files, but data.{} is \"{}\"; leave it empty or use "
           "format llmc",
           config.train.empty() ? "val" : "train",
           config.train.empty() ? config.val : config.train);
  } else if (config.train.empty()) {
    fail(Exit::config,
         "[data.train] is empty; name token shards (`trainer data` makes them from text), or use "
         "data.format synthetic");
  }
  if (config.tokenizer.empty())
    fail(Exit::config,
         "[data.tokenizer] is empty; use bytes, the path of a SentencePiece .model, or none");
  const int most_workers = 64;
  if (config.workers < 0 || config.workers > most_workers)
    fail(Exit::config, "[data.workers] is {}; use 0 to {}", config.workers, most_workers);
}

}  // namespace lockstep
