// Tokenizers: text comes back as it went in, and what they refuse.
#include "data/tokenizer.h"

#include <unistd.h>

#include <cstdio>

#include "core/philox.h"
#include "tests/data/data_test_util.h"

namespace lockstep {
namespace {

// Sentences of words made of syllables: enough regularity for a small vocabulary.
std::string generated_text(int lines) {
  const char* syllables[] = {"ba", "ko", "ri", "tel", "mun", "sa", "ve", "lon", "dra", "pi"};
  const Philox random(7);
  std::string text;
  for (int line = 0; line < lines; ++line) {
    for (int word = 0; word < 8; ++word) {
      const auto draw = random(line, word);
      for (uint32_t i = 0; i < 1 + draw[0] % 3; ++i) text += syllables[draw[i + 1] % 10];
      text += word == 7 ? "." : " ";
    }
    text += '\n';
  }
  return text;
}

const std::string& model() {
  static const std::string trained = train_sentencepiece(generated_text(400), 400);
  return trained;
}

std::string every_byte() {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  return bytes + bytes;
}

TEST(ByteTokenizer, ReturnsArbitraryBytes) {
  const auto bytes = open_tokenizer("bytes");
  EXPECT_EQ(bytes->vocab_size(), 256);
  EXPECT_EQ(bytes->identity(), "bytes");
  EXPECT_EQ(bytes->encode("A\xFF"), (std::vector<int32_t>{65, 255}));
  EXPECT_EQ(bytes->decode(bytes->encode(every_byte())), every_byte());
  EXPECT_EQ(bytes->decode(bytes->encode("")), "");
  for (int32_t id : {-1, 256})
    expect_error(Exit::data, {std::to_string(id), "256 ids of bytes"},
                 [&] { bytes->decode(std::vector<int32_t>{id}); });
}

TEST(SentencePieceTokenizer, ReturnsAnyUtf8) {
  TempFolder folder;
  write_text(folder / "a.model", model());
  const auto tokenizer = open_tokenizer(folder / "a.model");
  EXPECT_EQ(tokenizer->vocab_size(), 400);
  const std::vector<std::string> texts = {generated_text(20),
                                          "",
                                          " ",
                                          "  two  spaces ",
                                          "\n\nlines\r\n\ttabs\n",
                                          "Ünknöwn 漢字 🙂 \x7F",
                                          std::string("nul\0byte", 8),
                                          "<unk> <s> </s> <0x41>"};
  for (const std::string& text : texts) EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  const std::string known = generated_text(20);
  EXPECT_LT(tokenizer->encode(known).size(), known.size() / 2);  // it has learnt something
}

TEST(SentencePieceTokenizer, TrainingIsDeterministicAndIdentityFollowsTheModel) {
  TempFolder folder;
  EXPECT_EQ(train_sentencepiece(generated_text(400), 400), model());
  write_text(folder / "a.model", model());
  write_text(folder / "renamed.model", model());
  write_text(folder / "other.model", train_sentencepiece(generated_text(400), 350));
  const std::string identity = open_tokenizer(folder / "a.model")->identity();
  EXPECT_NE(identity.find("sentencepiece vocab=400 xxh3="), std::string::npos) << identity;
  EXPECT_EQ(open_tokenizer(folder / "renamed.model")->identity(), identity);
  EXPECT_NE(open_tokenizer(folder / "other.model")->identity(), identity);
}

TEST(SentencePieceTokenizer, TrainsOnOneLineLongerThanItsLimit) {
  std::string line = generated_text(400);
  for (char& c : line)
    if (c == '\n') c = ' ';
  TempFolder folder;
  write_text(folder / "a.model", train_sentencepiece(line, 400));
  EXPECT_EQ(open_tokenizer(folder / "a.model")->vocab_size(), 400);
}

TEST(SentencePieceTokenizer, Refusals) {
  TempFolder folder;
  expect_error(Exit::data, {"data.tokenizer", "no file", "absent.model", "bytes, none"},
               [&] { open_tokenizer(folder / "absent.model"); });
  for (const std::string content : {"", "this is not a model", "\x0A\xFF\xFF\xFF"}) {
    write_text(folder / "bad.model", content);
    expect_error(Exit::data, {"bad.model", "not a SentencePiece model"},
                 [&] { open_tokenizer(folder / "bad.model"); });
  }
  write_text(folder / "a.model", model());
  const auto tokenizer = open_tokenizer(folder / "a.model");
  expect_error(Exit::data, {"byte 2", "not UTF-8"}, [&] { tokenizer->encode("ab\xFF"); });
  expect_error(Exit::data, {"id 400", "400 ids of sentencepiece"},
               [&] { tokenizer->decode(std::vector<int32_t>{400}); });
  expect_error(Exit::data, {"vocabulary of 5000", "3 bytes"},
               [] { train_sentencepiece("abc", 5000); });
  EXPECT_EQ(open_tokenizer("none"), nullptr);
}

TEST(SentencePieceTokenizer, PrintsNothing) {
  TempFolder folder;
  std::fflush(stderr);
  const int saved = dup(2);
  ASSERT_NE(std::freopen((folder / "log").c_str(), "w", stderr), nullptr);
  write_text(folder / "a.model", train_sentencepiece(generated_text(300), 330));
  open_tokenizer(folder / "a.model")->encode("text\n");
  std::fflush(stderr);
  dup2(saved, 2);
  close(saved);
  EXPECT_EQ(read_text(folder / "log"), "");
}

TEST(CheckVocab, ModelsMayBePaddedButNotSmaller) {
  const auto bytes = open_tokenizer("bytes");
  check_vocab(*bytes, 256);
  check_vocab(*bytes, 320);
  expect_error(Exit::config, {"model.vocab_size", "255", "256 ids", "at least 256"},
               [&] { check_vocab(*bytes, 255); });
}

TEST(TakePiece, CutsAtLinesThenSpacesThenCharacters) {
  const auto pieces = [](std::string_view text, size_t most) {
    std::vector<std::string> all;
    while (!text.empty()) all.emplace_back(take_piece(text, most));
    return all;
  };
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(pieces("ab\ncd\nef", 7), (Pieces{"ab\ncd\n", "ef"}));
  EXPECT_EQ(pieces("\n\n\n", 1), (Pieces{"\n", "\n", "\n"}));
  EXPECT_EQ(pieces("one two three", 9), (Pieces{"one two", " three"}));
  EXPECT_EQ(pieces("ab\xC3\xA9"
                   "cd",
                   3),
            (Pieces{"ab",
                    "\xC3\xA9"
                    "c",
                    "d"}));
  EXPECT_EQ(pieces("\x80\x80\x80\x80\x80\x80", 4), (Pieces{"\x80\x80\x80\x80", "\x80\x80"}));
  EXPECT_EQ(pieces("", 4), Pieces{});
}

TEST(InvalidUtf8, FollowsTheStandard) {
  for (const char* good : {"", "plain", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xEF\xBF\xBD",
                           "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"})
    EXPECT_EQ(invalid_utf8(good), std::string_view::npos) << good;
  for (const char* bad : {"a\x80", "a\xC0\x80", "a\xC1\xBF", "a\xC2", "a\xE0\x9F\x80",
                          "a\xED\xA0\x80", "a\xF0\x8F\x80\x80", "a\xF4\x90\x80\x80", "a\xF8"})
    EXPECT_EQ(invalid_utf8(bad), 1u);
}

}  // namespace
}  // namespace lockstep
