// `trainer data`: a text file to a folder of token shards. It reads the text through a mapping and
// writes as a stream, so neither has to fit in memory. Knows nothing of the command line.
// Read next: shard.h, the layout of what it writes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/tokenizer.h"

namespace lockstep {

struct PrepareOptions {
  std::string text;
  std::string out;
  std::string tokenizer = "bytes";
  int64_t vocab_size = 0;
  double val_fraction = 0.1;
  int64_t shard_tokens = 100'000'000;

  template <class V>
  void visit(V& v) {
    v("text", text, "the text file (UTF-8 if a SentencePiece tokenizer shall read it)");
    v("out", out,
      "folder to make: train_*.bin, val_*.bin and, if one was trained, tokenizer.model; it must "
      "not exist or be empty");
    v("tokenizer", tokenizer,
      "bytes, the path of a SentencePiece .model, or train: train a SentencePiece model on the "
      "training part first");
    v("vocab_size", vocab_size, "number of ids of the model that tokenizer train makes");
    v("val_fraction", val_fraction,
      "the last part of the text that becomes validation data, cut at a line; 0 for none");
    v("shard_tokens", shard_tokens, "largest number of tokens in one shard");
  }
};

struct PrepareResult {
  int64_t text_bytes = 0;
  int64_t train_tokens = 0, val_tokens = 0;
  int64_t train_shards = 0, val_shards = 0;
  int64_t vocab_size = 0;  // the least model.vocab_size
  int token_bytes = 0;     // 2 or 4
  std::string train, val;  // what data.train and data.val should say; val is empty without val data
  std::string tokenizer;   // what data.tokenizer should say
};

// Everything is made in OUT.partial, which is renamed when it is complete: OUT is whole or absent,
// whenever the process dies. Text is encoded in pieces of at most 4 KiB that end with a line where
// they can. The options, and which tokenizer made the ids, are kept in OUT/made_from.txt.
// Exit::usage for an impossible option, Exit::data for the input and an OUT that is in use; what
// the system refuses to write fails as in core/file_error.h, so a full disk is Exit::restart.
PrepareResult prepare(const PrepareOptions& options);

// Whether OUT was made with these options from this content of the text and the tokenizer's model,
// and has every file that was made.
bool is_prepared(const PrepareOptions& options);

// That `tokenizer` made the ids of `data`, as far as the records of prepare() beside its shards
// tell. Exit::config naming both if another one did. Returns the folders of those that nothing is
// known of, such as llm.c's.
std::vector<std::string> check_made_by(const Tokenizer& tokenizer, const Dataset& data);

}  // namespace lockstep
