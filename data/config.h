// The `data` section of a run config: what the user may say about the data, with defaults and help.
// Rules that cross sections (vocabulary against the model, evaluation without validation data)
// stand with the trainer. Read next: dataset.h, which opens what this names.
#pragma once

#include <string>

#include "core/config_field.h"

namespace lockstep {

struct DataConfig {
  std::string train;
  std::string val;
  std::string format = "llmc";
  std::string tokenizer = "bytes";
  int workers = 1;

  template <class V>
  void visit(V& v) {
    v("train", train,
      "token shards to train on: a path or a glob such as shards/train_*.bin, read in byte order "
      "of the names; empty for format synthetic");
    v("val", val, "token shards to evaluate on, likewise; empty: no validation data");
    v("format", format,
      "llmc: .bin with llm.c's header; nanogpt_u16: headerless uint16; synthetic: random tokens, "
      "no files",
      Choices{"llmc", "nanogpt_u16", "synthetic"});
    v("tokenizer", tokenizer,
      "bytes, the path of a SentencePiece .model, or none where token ids have no text");
    v("workers", workers, "threads that prepare batches ahead; 0 reads them when they are needed",
      Range{0, 64});
  }
};

enum class DataFormat { llmc, nanogpt_u16, synthetic };

// Exit::config for any other name.
DataFormat parse_data_format(const std::string& name);

// Checks this section alone: the format's name, its files, the number of workers. Exit::config.
void validate(const DataConfig& config);

}  // namespace lockstep
