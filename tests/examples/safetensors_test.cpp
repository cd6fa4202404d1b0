// The file format: bytes as Python's safetensors writes and reads them, and every malformed header.
#include "examples/safetensors.h"

#include <xxhash.h>

#include <cstring>
#include <random>

#include "core/philox.h"
#include "tests/file_test_util.h"

namespace lockstep {
namespace {

std::string with_length(const std::string& header) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header;
}

std::vector<NamedTensor> sample() {
  return {{"bytes", Tensor::from<uint8_t>({1, 2, 3}, {3})},
          {"half", Tensor::from<bf16>({to_bf16(1.f), to_bf16(-2.f)}, {2, 1})},
          {"scalar", Tensor::from<float>({0.5f}, {})},
          {"empty", Tensor::zeros({0, 7})},
          {"ids", Tensor::from<int32_t>({-1, 7, 65536}, {1, 3})},
          {"sum", Tensor::from<double>({1e-300}, {1})}};
}

TEST(Safetensors, RoundTrip) {
  TempFolder folder;
  const auto tensors = sample();
  const FileSum sum = write_safetensors(folder / "x", tensors, {{"who", "\"me\"\n"}});
  const std::string raw = read_text(folder / "x");
  EXPECT_EQ(sum, (FileSum{static_cast<int64_t>(raw.size()), XXH3_64bits(raw.data(), raw.size())}));
  EXPECT_EQ(sum_of_file(folder / "x"), sum);

  const SafetensorsFile file(folder / "x");
  EXPECT_EQ(file.entries().size(), tensors.size());
  EXPECT_EQ(file.metadata(), (TextMap{{"who", "\"me\"\n"}}));
  EXPECT_FALSE(file.contains("who"));
  for (const auto& [name, t] : tensors) {
    ASSERT_TRUE(file.contains(name));
    const Tensor loaded = file.load(name);
    EXPECT_EQ(to_string(loaded), to_string(t));
    EXPECT_EQ(file.bytes(name).size(), t.bytes());
    EXPECT_TRUE(t.bytes() == 0 || std::memcmp(loaded.raw(), t.raw(), t.bytes()) == 0) << name;
  }
}

// The bytes that Python's safetensors.numpy.save gives for the same two tensors and metadata.
TEST(Safetensors, GoldenBytes) {
  TempFolder folder;
  const std::vector<NamedTensor> tensors = {{"b", Tensor::from<uint8_t>({9, 8}, {2})},
                                            {"w", Tensor::from<float>({1.f, -2.f}, {1, 2})}};
  write_safetensors(folder / "x", tensors, {{"k", "v"}});
  std::string header =
      R"({"__metadata__":{"k":"v"},"w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"U8","shape":[2],"data_offsets":[8,10]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::string data("\0\0\x80\x3f\0\0\0\xc0\x09\x08", 10);
  EXPECT_EQ(read_text(folder / "x"), with_length(header) + data);
}

TEST(Safetensors, ReadsWhatPythonWrote) {
  const SafetensorsFile file(LOCKSTEP_SOURCE_DIR "/tests/nn/goldens/gpt2.safetensors");
  EXPECT_EQ(file.load("weight/wte.weight").shape(), (Shape{48, 16}));
  const auto tokens = file.load("tokens").to_vector<int32_t>();
  for (int32_t id : tokens) EXPECT_TRUE(0 <= id && id < 48) << id;
  const auto losses = file.load("losses").to_vector<float>();
  EXPECT_EQ(losses.size(), 10u);
  EXPECT_LT(losses[9], losses[0]);
  EXPECT_NO_THROW(SafetensorsFile(LOCKSTEP_SOURCE_DIR "/tests/nn/goldens/llama.safetensors"));
}

TEST(Safetensors, EmptyFileOfTensors) {
  TempFolder folder;
  write_safetensors(folder / "x", {});
  EXPECT_TRUE(SafetensorsFile(folder / "x").entries().empty());
}

TEST(Safetensors, ReadIntoMemoryThatExists) {
  TempFolder folder;
  write_safetensors(folder / "x", sample());
  const SafetensorsFile file(folder / "x");
  const Tensor ids = Tensor::zeros({1, 3}, DType::i32);
  file.read("ids", ids);
  EXPECT_EQ(ids.to_vector<int32_t>(), (std::vector<int32_t>{-1, 7, 65536}));
  expect_error(Exit::data, {folder / "x", "\"ids\" is I32[1, 3], I32[3] is wanted"},
               [&] { file.read("ids", Tensor::zeros({3}, DType::i32)); });
  expect_error(Exit::data, {"\"ids\" is I32[1, 3], F32[1, 3] is wanted"}, [&] {
    file.read("ids", Tensor::zeros({1, 3}));
  });
  expect_error(Exit::data, {"no tensor \"a\\nb\" among its 6: ", "\"scalar\"", ", ..."},
               [&] { file.load("a\nb"); });
  expect_error(Exit::internal, {"which is not contiguous"}, [&] {
    file.read("ids", Tensor::zeros({2, 2}).transposed());
  });
}

TEST(Safetensors, WhatCannotBeWritten) {
  TempFolder folder;
  const Tensor t = Tensor::zeros({2, 3});
  expect_error(Exit::internal, {"w is f32[3, 2], which is not contiguous"}, [&] {
    write_safetensors(folder / "x", std::vector<NamedTensor>{{"w", t.transposed()}});
  });
  expect_error(Exit::internal, {"the name w twice"}, [&] {
    write_safetensors(folder / "x", std::vector<NamedTensor>{{"w", t}, {"w", t}});
  });
  expect_error(Exit::config,
               {"cannot write " + (folder / "no/x"), "No such file", "check the folder"}, [&] {
                 write_safetensors(folder / "no/x", std::vector<NamedTensor>{{"w", t}});
               });
}

struct Malformed {
  const char* what;
  std::string content;
  std::string message;
};

TEST(Safetensors, MalformedFiles) {
  const std::string one = R"("w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  const auto entry = [](const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
    return with_length(R"({"w":{"dtype":)" + dtype + R"(,"shape":)" + shape +
                       R"(,"data_offsets":)" + offsets + "}}") +
           "1234";
  };
  const std::string described = "tensor \"w\" is described by";
  const std::string unequal = "its size and its place do not agree";
  const Malformed cases[] = {
      {"empty", "", ": 0 bytes; a safetensors file starts with 8 bytes"},
      {"short", "1234567", ": 7 bytes;"},
      {"text", "some text of no format", "more than the format's limit of 100000000"},
      {"cut header", with_length("{" + one + "}").substr(0, 20),
       "the header should end at byte 62, the file has 20 bytes; it is cut"},
      {"no JSON", with_length("{nonsense}"), "the header of 10 bytes is not JSON"},
      {"no header", with_length(""), "the header of 0 bytes is not JSON"},
      {"bad UTF-8", with_length("{\"\xff\":1}"), "is not JSON"},
      {"array", with_length("[1]"), "the header is a JSON array, not an object"},
      {"twice", with_length("{" + one + "," + one + "}") + "1234", "names \"w\" twice"},
      {"metadata", with_length(R"({"__metadata__":{"a":1}})"), "must map texts to texts"},
      {"metadata list", with_length(R"({"__metadata__":["a"]})"), "must map texts to texts"},
      {"no object", with_length(R"({"w":4})"), described + " 4;"},
      {"key missing", with_length(R"({"w":{"dtype":"F32","shape":[1]}})"), described},
      {"one too many",
       with_length(R"({"w":{"dtype":"F32","shape":[],"data_offsets":[0,4],"x":1}})"), described},
      {"dtype", entry("7", "[1]", "[0,4]"), described},
      {"negative", entry("\"F32\"", "[-1]", "[0,4]"), described},
      {"fraction", entry("\"F32\"", "[1.5]", "[0,4]"), described},
      {"beyond int64", entry("\"F32\"", "[9223372036854775808]", "[0,4]"), described},
      {"one offset", entry("\"F32\"", "[1]", "[4]"), described},
      {"unknown type", entry("\"F\\n32\"", "[1]", "[0,4]"), "unknown element type \"F\\n32\""},
      {"too small", entry("\"F32\"", "[2]", "[0,4]"), "F32[2] and lies at [0, 4); " + unequal},
      {"reversed", entry("\"F32\"", "[1]", "[4,0]"), unequal},
      {"overflow", entry("\"F32\"", "[4294967296,4294967296]", "[0,0]"), unequal},
      {"hole", entry("\"F32\"", "[0]", "[4,4]"),
       "lies at [4, 4), the one before it ends at 0; there"},
      {"overlap",
       with_length("{" + one + R"(,"v":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})") + "1234",
       "tensor \"v\" lies at [2, 4), the one before it ends at 4; they overlap"},
      {"cut", with_length("{" + one + "}") + "123",
       "promises 4 bytes of tensors, 3 follow it; the file is cut"},
      {"too long", with_length("{" + one + "}") + "12345",
       "promises 4 bytes of tensors, 5 follow it; the file is too long"},
  };
  TempFolder folder;
  const std::string path = folder / "bad.safetensors";
  for (const Malformed& c : cases) {
    SCOPED_TRACE(c.what);
    write_text(path, c.content);
    expect_error(Exit::data, {"[safetensors] " + path + ": ", c.message},
                 [&] { SafetensorsFile file(path); });
  }
  write_text(path, with_length("{" + one + "}") + "1234");
  EXPECT_NO_THROW(SafetensorsFile(path).load("w"));
  expect_error(Exit::data, {"cannot open " + (folder / "absent")},
               [&] { SafetensorsFile file(folder / "absent"); });
}

TEST(Safetensors, ForeignElementTypesAreListedButNotLoaded) {
  TempFolder folder;
  write_text(folder / "x",
             with_length(R"({"w":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}})") + "1234");
  const SafetensorsFile file(folder / "x");
  EXPECT_EQ(file.entries()[0].dtype, "F16");
  expect_error(Exit::data, {"\"w\" is F16[2]; F32, BF16, F64, I32 or U8 can be loaded"},
               [&] { file.load("w"); });
}

// A file that changes under the reader is an error, not SIGBUS.
TEST(Safetensors, CutWhileOpen) {
  TempFolder folder;
  write_safetensors(folder / "x", std::vector<NamedTensor>{{"w", Tensor::zeros({1 << 16})}});
  const SafetensorsFile file(folder / "x");
  std::filesystem::resize_file(folder / "x", 100);
  expect_error(Exit::data, {"had 262216 bytes when it was opened and has 100 now"},
               [&] { file.load("w"); });
}

// Bytes changed, removed, inserted anywhere: an error of the right kind or a file that can be read.
TEST(Safetensors, MutatedFilesNeverCrash) {
  TempFolder folder;
  write_safetensors(folder / "good", sample(), {{"key", "value"}});
  const std::string good = read_text(folder / "good");
  std::mt19937_64 random(1);
  int accepted = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string bytes = good;
    for (int edits = 1 + random() % 3; edits > 0; --edits) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = "0123456789{}[]\",:-e."[random() % 20];
          break;
        case 2:
          bytes.erase(at, 1 + random() % 3);
          break;
        case 3:
          bytes.insert(at, 1, "0123456789{}[]\",:-e."[random() % 20]);
          break;
      }
    }
    std::filesystem::remove(folder / "x");  // rewriting in place makes ext4 flush
    write_text(folder / "x", bytes);
    try {
      const SafetensorsFile file(folder / "x");
      for (const auto& e : file.entries()) file.load(e.name);
      ++accepted;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::data) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(accepted, 0);  // changes of the elements themselves
  EXPECT_LT(accepted, 1000);
}

}  // namespace
}  // namespace lockstep
