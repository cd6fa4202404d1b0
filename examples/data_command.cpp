// `trainer data`: text to token shards, once. Read next: data/prepare.h.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>

#include "data/prepare.h"
#include "examples/command.h"

namespace lockstep {

namespace {

// Every field becomes an option: shard_tokens is --shard-tokens.
struct AddOptions {
  CLI::App& command;

  template <class T>
  void operator()(std::string name, T& field, const std::string& help) {
    std::replace(name.begin(), name.end(), '_', '-');
    CLI::Option* option = command.add_option("--" + name, field, help)->capture_default_str();
    if constexpr (std::is_same_v<T, int64_t>)
      option->transform(CLI::AsSizeValue(true).description(""));
  }
};

void show(const PrepareOptions& options, const PrepareResult& made) {
  fmt::print(
      "{}: {} training tokens and {} validation tokens from {} bytes of text\n"
      "A run config names them as\n"
      "  \"model\": {{\"vocab_size\": {}}},\n"
      "  \"data\": {{\"train\": \"{}\", \"val\": \"{}\", \"tokenizer\": \"{}\"}}\n",
      options.out, made.train_tokens, made.val_tokens, made.text_bytes, made.vocab_size, made.train,
      made.val, made.tokenizer);
}

}  // namespace

void add_data_command(CLI::App& app, Exit& exit) {
  CLI::App* command = app.add_subcommand("data", "make token shards from a text file");
  auto options = std::make_shared<PrepareOptions>();
  AddOptions add{*command};
  options->visit(add);
  command->get_option("--text")->required();
  command->get_option("--out")->required();
  command->footer(
      "Run again, it does nothing while text and options are the same.\n"
      "Examples:\n"
      "  trainer data --text bible.txt --out runs/quickstart/data/tokens\n"
      "  trainer data --text bible.txt --out shards --tokenizer train --vocab-size 8192");
  command->callback([options, &exit] {
    if (is_prepared(*options))
      fmt::print("{}: up to date\n", options->out);
    else
      show(*options, prepare(*options));
    exit = Exit::ok;
  });
}

}  // namespace lockstep
