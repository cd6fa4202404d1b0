// Reading and printing run configs: round trip bit for bit, overrides, and every message.
#include "examples/config_io.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "core/error.h"
#include "examples/config_fields.h"
#include "examples/edit_distance.h"

namespace lockstep {
namespace {

class ConfigIo : public testing::Test {
 protected:
  ConfigIo() : file_(testing::TempDir() + fmt::format("config_io_{}.json", getpid())) {}
  ~ConfigIo() override { std::filesystem::remove(file_); }

  Config read(const std::string& text, const std::vector<std::string>& overrides = {}) {
    std::ofstream(file_) << text;
    return read_config(file_, overrides);
  }

  // The message with the file's name replaced by FILE; the code must be the expected one.
  std::string message(const std::string& text, const std::vector<std::string>& overrides = {},
                      Exit code = Exit::config) {
    try {
      read(text, overrides);
    } catch (const Error& error) {
      EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code));
      std::string what = error.what();
      const size_t at = what.find(file_);
      return at == what.npos ? what : what.replace(at, file_.size(), "FILE");
    }
    return "no error";
  }

  std::string set_message(const std::string& override) { return message("{}", {override}); }

  std::string file_;
};

TEST_F(ConfigIo, AnEmptyObjectIsTheDefaults) {
  EXPECT_EQ(print_config(read("{}")), print_config(Config{}));
}

TEST_F(ConfigIo, FileHoldsOnlyWhatDiffers) {
  const Config c = read(R"({"run_dir": "r", "model": {"arch": "llama", "n_layer": 3},
                            "optim": {"betas": [0.8, 0.99]}, "dist": {"overlap": false}})");
  EXPECT_EQ(c.run_dir, "r");
  EXPECT_EQ(c.model.arch, "llama");
  EXPECT_EQ(c.model.n_layer, 3);
  EXPECT_EQ(c.model.n_head, ModelConfig{}.n_head);
  EXPECT_EQ(c.optim.betas, (std::vector<double>{0.8, 0.99}));
  EXPECT_FALSE(c.dist.overlap);
}

// Every field gets a value of its own, doubles one that no short decimal hits.
TEST_F(ConfigIo, RoundTripIsExact) {
  Config original;
  for (ConfigField& field : config_fields(original).fields) {
    if (auto* text = std::get_if<std::string*>(&field.value))
      **text = field.choices ? std::string(field.choices->values.back()) : "a \"b\"\n\u00e9 \\";
    if (auto* flag = std::get_if<bool*>(&field.value)) **flag = !**flag;
    if (auto* number = std::get_if<double*>(&field.value)) **number = std::nextafter(**number, 0.5);
    if (auto* list = std::get_if<std::vector<double>*>(&field.value))
      **list = {1.0 / 3, 0.1, 5e-324};
    if (auto* whole = std::get_if<int64_t*>(&field.value)) **whole += 1;
    if (auto* whole = std::get_if<int*>(&field.value)) **whole += 1;
  }
  original.train.seed = std::numeric_limits<int64_t>::max();
  Config again = read(print_config(original));
  const auto before = config_fields(original).fields, after = config_fields(again).fields;
  ASSERT_EQ(before.size(), after.size());
  for (size_t i = 0; i < before.size(); ++i)
    std::visit(
        [&](auto* value) {
          EXPECT_EQ(*value, *std::get<decltype(value)>(after[i].value)) << before[i].path;
        },
        before[i].value);
}

TEST_F(ConfigIo, OverridesComeAfterTheFileAndInOrder) {
  const Config c = read(R"({"optim": {"lr": 0.5}, "model": {"n_layer": 2}})",
                        {"optim.lr=1e-3", "optim.lr=2e-3", "optim.betas=[0.5, 0.75]",
                         "dist.overlap=false", "model={\"n_head\": 2}", "train.steps=1e4"});
  EXPECT_EQ(c.optim.lr, 2e-3);
  EXPECT_EQ(c.optim.betas, (std::vector<double>{0.5, 0.75}));
  EXPECT_FALSE(c.dist.overlap);
  EXPECT_EQ(c.model.n_layer, 2);
  EXPECT_EQ(c.model.n_head, 2);
  EXPECT_EQ(c.train.steps, 10000);
}

TEST_F(ConfigIo, TextNeedsNoQuotesInAnOverride) {
  const Config c = read("{}", {"run_dir=runs/a=b", "data.tokenizer=\"quoted\"", "data.val=12",
                               "data.train=", "train.sample_prompt=\"\\n\""});
  EXPECT_EQ(c.run_dir, "runs/a=b");
  EXPECT_EQ(c.data.tokenizer, "quoted");
  EXPECT_EQ(c.data.val, "12");
  EXPECT_EQ(c.data.train, "");
  EXPECT_EQ(c.train.sample_prompt, "\n");
}

TEST_F(ConfigIo, UnknownKeys) {
  EXPECT_EQ(message(R"({"train": {"stesp": 1}})"),
            "[config] FILE: unknown key \"train.stesp\"; the nearest one is \"train.steps\"");
  EXPECT_EQ(message(R"({"lr": 1})"),
            "[config] FILE: unknown key \"lr\"; the nearest one is \"optim.lr\"");
  EXPECT_EQ(message(R"({"optimizer": {}})"),
            "[config] FILE: unknown key \"optimizer\"; the nearest one is \"optim\"");
  EXPECT_EQ(set_message("model.n_layers=2"),
            "[config] --set: unknown key \"model.n_layers\"; the nearest one is \"model.n_layer\"");
  EXPECT_EQ(set_message("train.seed.x=2"),
            "[config] --set: unknown key \"train.seed.x\"; the nearest one is \"train.seed\"");
}

TEST_F(ConfigIo, WrongTypes) {
  EXPECT_EQ(message(R"({"train": {"steps": "many"}})"),
            "[config] FILE: train.steps must be a whole number, found \"many\"");
  EXPECT_EQ(message(R"({"train": {"steps": 1.5}})"),
            "[config] FILE: train.steps must be a whole number, found 1.5");
  EXPECT_EQ(message(R"({"train": {"seed": 9223372036854775808}})"),
            "[config] FILE: train.seed must be a whole number, found 9223372036854775808");
  EXPECT_EQ(message(R"({"run_dir": 1})"), "[config] FILE: run_dir must be a string, found 1");
  EXPECT_EQ(message(R"({"dist": {"overlap": 1}})"),
            "[config] FILE: dist.overlap must be true or false, found 1");
  EXPECT_EQ(message(R"({"optim": {"lr": null}})"),
            "[config] FILE: optim.lr must be a number, found null");
  EXPECT_EQ(message(R"({"optim": {"betas": 0.9}})"),
            "[config] FILE: optim.betas must be a list of numbers, found 0.9");
  EXPECT_EQ(message(R"({"optim": {"betas": [0.9, "x"]}})"),
            "[config] FILE: optim.betas must be a list of numbers, found [0.9,\"x\"]");
  EXPECT_EQ(message(R"({"model": 3})"),
            "[config] FILE: model must be a section, that is a JSON object, found 3");
  EXPECT_EQ(set_message("train.steps=many"),
            "[config] --set: train.steps must be a whole number, found \"many\"");
}

TEST_F(ConfigIo, ChoicesAndRanges) {
  EXPECT_EQ(message(R"({"train": {"precision": "fp16"}})"),
            "[config] FILE: train.precision must be one of fp32, tf32, bf16, found \"fp16\"");
  EXPECT_EQ(message(R"({"model": {"dropout": 1.5}})"),
            "[config] FILE: model.dropout must be from 0 to 0.99, found 1.5");
  EXPECT_EQ(message(R"({"train": {"seed": -1}})"),
            "[config] FILE: train.seed must be at least 0, found -1");
  EXPECT_EQ(message(R"({"optim": {"betas": [0.9, 1.0]}})"),
            "[config] FILE: optim.betas must be from 0 to 0.999999999, found 1");
}

TEST_F(ConfigIo, DuplicateKeys) {
  EXPECT_EQ(message(R"({"model": {"n_layer": 1, "n_head": 1, "n_layer": 2}})"),
            "[config] FILE: key \"model.n_layer\" stands twice; keep one of them");
  EXPECT_EQ(message(R"({"model": {}, "optim": {}, "model": {}})"),
            "[config] FILE: key \"model\" stands twice; keep one of them");
  EXPECT_EQ(set_message("model={\"n_head\": 1, \"n_head\": 1}"),
            "[config] --set: key \"n_head\" stands twice; keep one of them");
}

TEST_F(ConfigIo, NotJsonNamesLineAndColumn) {
  EXPECT_EQ(message("{\n  \"run_dir\": \"x\",\n}\n"),
            "[config] FILE:3:1: not JSON: unexpected '}'; expected string literal");
  EXPECT_EQ(message("{\"run_dir\": x}"),
            "[config] FILE:1:13: not JSON: invalid literal; last read: '\"run_dir\": x'");
  EXPECT_EQ(
      message(""),
      "[config] FILE:1:1: not JSON: unexpected end of input; expected '[', '{', or a literal");
  EXPECT_EQ(message("{\"a\": 1"),
            "[config] FILE:1:8: not JSON: unexpected end of input; expected '}'");
  EXPECT_EQ(message("{\"optim\": {\"lr\": 1e999}}"),
            "[config] FILE: number overflow parsing '1e999'");
  EXPECT_EQ(message("[1]"), "[config] FILE: must hold a JSON object, found array");
}

TEST_F(ConfigIo, MissingFile) {
  for (const std::string file : {"no/such.json", "/"}) {
    try {
      read_config(file);
      ADD_FAILURE() << file;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::config);
      EXPECT_EQ(error.what(), fmt::format("[config] {}: no such file, or it cannot be read; name a "
                                          "JSON run config",
                                          file));
    }
  }
}

TEST_F(ConfigIo, AnOverrideWithoutValueIsAUsageError) {
  EXPECT_EQ(message("{}", {"optim.lr"}, Exit::usage),
            "[config] --set optim.lr: write --set key=value, such as --set optim.lr=1e-3");
}

TEST(ConfigHelp, NamesEveryKeyWithItsDefaultAndHelp) {
  const std::string help = config_help();
  Config config;
  for (const ConfigField& field : config_fields(config).fields) {
    EXPECT_NE(help.find("  " + field.path + " = "), help.npos) << field.path;
    EXPECT_FALSE(field.help.empty()) << field.path;
    EXPECT_NE(help.find(field.help), help.npos) << field.path;
    const bool is_number = !std::holds_alternative<std::string*>(field.value) &&
                           !std::holds_alternative<bool*>(field.value);
    EXPECT_EQ(field.range.has_value(), is_number) << field.path;
  }
  EXPECT_NE(help.find("  model.arch = \"gpt2\"  (gpt2 | llama)\n"), help.npos);
  EXPECT_NE(help.find("  train.seed = 0  (a whole number, >= 0)\n"), help.npos);
  EXPECT_NE(help.find("  optim.lr = 0.0003  (a number, 0 to 1000)\n"), help.npos);
}

TEST(EditDistance, KnownPairs) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("", "ab"), 2u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("flaw", "lawn"), 2u);
}

TEST_F(ConfigIo, KeysWithDotsBelongIntoSections) {
  EXPECT_EQ(message(R"({"model": {"n_layer": 2}, "model.n_layer": 5})"),
            "[config] FILE: key \"model.n_layer\" has a dot; sections are objects of their own");
}

TEST_F(ConfigIo, WhatIsNestedTooDeeplyIsRefused) {
  EXPECT_EQ(message("{\"model\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}"),
            "[config] FILE: nested more than 20 deep; a section in a section is right");
}

TEST_F(ConfigIo, OverridesAreUtf8) {
  EXPECT_EQ(message("{}", {"run_dir=caf\xe9"}, Exit::usage),
            "[config] --set run_dir=caf...: not UTF-8 at byte 11");
}

}  // namespace
}  // namespace lockstep
