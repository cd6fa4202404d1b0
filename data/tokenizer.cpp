// Bytes and SentencePiece. Read next: prepare.cpp.
#include "data/tokenizer.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <unordered_map>

#include "core/error.h"
#include "data/mapped_file.h"

namespace lockstep {

namespace {

void check_ids(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  for (int32_t id : ids)
    if (id < 0 || id >= tokenizer.vocab_size())
      fail(Exit::data,
           "[tokenizer] id {} is outside the {} ids of {}; use the tokenizer that made "
           "the data",
           id, tokenizer.vocab_size(), tokenizer.identity());
}

class ByteTokenizer : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text) const override {
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    return {bytes, bytes + text.size()};
  }
  std::string decode(std::span<const int32_t> ids) const override {
    check_ids(*this, ids);
    return {ids.begin(), ids.end()};
  }
  int64_t vocab_size() const override { return 256; }
  std::string identity() const override { return "bytes"; }
};

class SentencePieceTokenizer : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::string& path) {
    const MappedFile file(path);
    const auto status = processor_.LoadFromSerializedProto(file.text());
    if (!status.ok())
      fail(Exit::data, "[tokenizer] {} is not a SentencePiece model; use a .model file, or bytes",
           path);
    identity_ = fmt::format("sentencepiece vocab={} xxh3={:016x}", vocab_size(),
                            XXH3_64bits(file.data(), file.size()));
  }
  std::vector<int32_t> encode(std::string_view text) const override {
    if (const size_t bad = invalid_utf8(text); bad != text.npos)
      fail(Exit::data,
           "[tokenizer] byte {} of the text is not UTF-8, which SentencePiece needs; convert it",
           bad);
    std::vector<int> ids;
    const auto status = processor_.Encode(text, &ids);
    check(status.ok(), "[tokenizer] SentencePiece: {}", status.ToString());
    return ids;
  }
  std::string decode(std::span<const int32_t> ids) const override {
    check_ids(*this, ids);
    std::string text;
    const auto status = processor_.Decode(std::vector<int>(ids.begin(), ids.end()), &text);
    check(status.ok(), "[tokenizer] SentencePiece: {}", status.ToString());
    return text;
  }
  int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  std::string identity() const override { return identity_; }

 private:
  sentencepiece::SentencePieceProcessor processor_;
  std::string identity_;
};

constexpr size_t most_line_bytes = 4096;  // SentencePiece passes over longer ones

// The lines of a text, without their ends; longer ones in several pieces.
class Lines : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(std::string_view text) : text_(text) { Next(); }
  bool done() const override { return done_; }
  void Next() override {
    do {
      done_ = line_.empty() && text_.empty();
      if (done_) return;
      if (line_.empty()) {
        line_ = text_.substr(0, text_.find('\n'));
        text_.remove_prefix(std::min(line_.size() + 1, text_.size()));
      }
      value_ = take_piece(line_, most_line_bytes);
    } while (value_.empty());
  }
  const std::string& value() const override { return value_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  std::string_view text_, line_;
  std::string value_;
  bool done_ = false;
};

}  // namespace

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name) {
  if (name == "none") return nullptr;
  if (name == "bytes") return std::make_unique<ByteTokenizer>();
  std::error_code ignored;
  if (!std::filesystem::exists(name, ignored))
    fail(Exit::data,
         "[data.tokenizer] there is no file {}; use bytes, none, or the path of a SentencePiece "
         ".model",
         name);
  return std::make_unique<SentencePieceTokenizer>(name);
}

void check_vocab(const Tokenizer& tokenizer, int64_t model_vocab_size) {
  if (model_vocab_size < tokenizer.vocab_size())
    fail(Exit::config,
         "[model.vocab_size] is {}, less than the {} ids of data.tokenizer ({}); set it to at "
         "least {}",
         model_vocab_size, tokenizer.vocab_size(), tokenizer.identity(), tokenizer.vocab_size());
}

std::string train_sentencepiece(std::string_view text, int64_t vocab_size) {
  const std::unordered_map<std::string, std::string> options = {
      {"model_type", "bpe"},
      {"vocab_size", std::to_string(vocab_size)},
      {"character_coverage", "0.9995"},
      {"byte_fallback", "true"},
      // The identity in all respects: see the header.
      {"normalization_rule_name", "identity"},
      {"add_dummy_prefix", "false"},
      {"remove_extra_whitespaces", "false"},
      {"bos_id", "-1"},
      {"eos_id", "-1"},
      {"max_sentence_length", std::to_string(most_line_bytes)},
      {"input_sentence_size", "1000000"},
      {"shuffle_input_sentence", "false"},  // its shuffle is seeded by the clock
      {"num_threads", "1"},
      {"minloglevel", "3"},  // errors come back as a status
  };
  Lines lines(text);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(options, &lines, &model);
  if (!status.ok())
    fail(Exit::data,
         "[tokenizer] SentencePiece cannot make a vocabulary of {} from {} bytes of text: {}",
         vocab_size, text.size(), status.error_message());
  return model;
}

std::string_view take_piece(std::string_view& text, size_t most_bytes) {
  size_t length = std::min(text.size(), most_bytes);
  if (length < text.size()) {
    const std::string_view front = text.substr(0, length);
    if (const size_t newline = front.rfind('\n'); newline != front.npos) {
      length = newline + 1;
    } else if (const size_t space = front.rfind(' '); space != front.npos && space > 0) {
      length = space;
    } else {
      // A continuation byte is 10xxxxxx; text that is not UTF-8 is cut anywhere.
      size_t cut = length;
      while (cut > length - std::min<size_t>(length, 4) && (text[cut] & 0xC0) == 0x80) --cut;
      if (cut > 0 && (text[cut] & 0xC0) != 0x80) length = cut;
    }
  }
  const std::string_view piece = text.substr(0, length);
  text.remove_prefix(length);
  return piece;
}

size_t invalid_utf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  for (size_t i = 0; i < text.size();) {
    const uint32_t lead = byte(i);
    const size_t length = lead < 0x80              ? 1
                          : (lead >> 5) == 0b110   ? 2
                          : (lead >> 4) == 0b1110  ? 3
                          : (lead >> 3) == 0b11110 ? 4
                                                   : 0;
    if (length == 0 || i + length > text.size()) return i;
    uint32_t code = length == 1 ? lead : lead & (0xFF >> (length + 1));
    for (size_t j = 1; j < length; ++j) {
      if ((byte(i + j) & 0xC0) != 0x80) return i;
      code = code << 6 | (byte(i + j) & 0x3F);
    }
    // Longer than needed, half of a surrogate pair, or beyond Unicode.
    constexpr uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (code < least[length] || (code >= 0xD800 && code <= 0xDFFF) || code > 0x10FFFF) return i;
    i += length;
  }
  return text.npos;
}

}  // namespace lockstep
