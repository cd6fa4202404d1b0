// Text to token ids and back. `bytes` needs no file; SentencePiece models are applied, and trained
// so that every text survives the way there and back. Other vocabularies come as ready shards.
// Read next: prepare.h, which writes shards.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // Exit::data if a SentencePiece tokenizer is given text that is not UTF-8.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  virtual std::string decode(std::span<const int32_t> ids) const = 0;  // Exit::data for foreign ids
  virtual int64_t vocab_size() const = 0;
  // Kind and, for a model file, a hash of its content: equal exactly for tokenizers that agree.
  virtual std::string identity() const = 0;
};

// `name` is data.tokenizer: bytes (an id is a byte, vocabulary 256), the path of a SentencePiece
// model, or none, which gives null. Exit::data for a file that is missing or no such model.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name);

// A model may have more ids than its tokenizer (padding), never fewer. Exit::config.
void check_vocab(const Tokenizer& tokenizer, int64_t model_vocab_size);

// Trains a SentencePiece BPE model on the lines of `text` and returns it, to be written as a
// .model. Nothing is normalised and unknown characters fall back to bytes, so that decoding gives
// back any valid UTF-8 (except U+2581, SentencePiece's own sign for a space, which comes back as a
// space). Reads the first million lines; the same text gives the same model. Exit::data if the text
// is too small for the vocabulary.
std::string train_sentencepiece(std::string_view text, int64_t vocab_size);

// Cuts at most `most_bytes` off the front of `text`: up to and with the last newline, else up to
// the last space, else between two UTF-8 characters. The pieces of a text make up the text.
std::string_view take_piece(std::string_view& text, size_t most_bytes);

// The position of the first byte that is not UTF-8 (RFC 3629), or npos. SentencePiece would replace
// such bytes silently.
size_t invalid_utf8(std::string_view text);

}  // namespace lockstep
