// `trainer generate`: text from a checkpoint. Read next: generate.h.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "data/tokenizer.h"
#include "examples/checkpoint.h"
#include "examples/command.h"
#include "examples/config_io.h"
#include "examples/generate.h"
#include "examples/saved_run.h"

namespace lockstep {

namespace {

struct Options {
  std::string run, checkpoint, prompt = "\n";
  GenerateOptions generate;
};

Checkpoint find(const Options& options) {
  if (options.run.empty() == options.checkpoint.empty())
    fail(Exit::usage, "[generate] give either --run (its newest checkpoint) or --checkpoint");
  if (!options.checkpoint.empty()) return open_checkpoint(options.checkpoint);
  const auto latest = find_latest_checkpoint(
      options.run + "/checkpoints",
      [](const std::string& why) { fmt::print(stderr, "warning: {}\n", why); });
  if (!latest) fail(Exit::data, "[generate] {} holds no checkpoint; train first", options.run);
  return *latest;
}

void generate_action(const Options& options) {
  const Checkpoint checkpoint = find(options);
  const Config config = parse_config(
      SavedRun::from_json(checkpoint.metadata, checkpoint.path).config, checkpoint.path);
  const auto tokenizer = open_tokenizer(config.data.tokenizer);
  if (!tokenizer)
    fail(Exit::config, "[generate] {} was trained with data.tokenizer none: its ids have no text",
         checkpoint.path);
  Gpt model(config.model, config.train.precision == "bf16" ? DType::bf16 : DType::f32, 0);
  const SafetensorsFile file = checkpoint.open(state_file);
  for (const auto& [name, tensor] : model.parameters()) file.read(name, tensor);
  const auto text = generate(model, tokenizer->encode(options.prompt), options.generate);
  fmt::print("{}\n", tokenizer->decode(text));
}

}  // namespace

void add_generate_command(CLI::App& app, Exit& exit) {
  CLI::App* command = app.add_subcommand("generate", "let a trained model write");
  auto options = std::make_shared<Options>();
  GenerateOptions& g = options->generate;
  command->add_option("--run", options->run, "run folder, whose newest checkpoint is used")
      ->type_name("FOLDER");
  command->add_option("--checkpoint", options->checkpoint, "one checkpoint")->type_name("FOLDER");
  command->add_option("--prompt", options->prompt, "text to go on from");
  command->add_option("--tokens", g.tokens, "how many to append")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  command->add_option("--temperature", g.temperature, "0: always the most likely token")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  command->add_option("--top-k", g.top_k, "choose among the k most likely tokens; 0: all")
      ->check(CLI::Range(0, 1000000000))
      ->capture_default_str();
  command->add_option("--seed", g.seed, "another seed, another text")->capture_default_str();
  command->footer(
      "Example:\n  trainer generate --run runs/quickstart --prompt 'And God said' --tokens 300");
  command->callback([options, &exit] {
    generate_action(*options);
    exit = Exit::ok;
  });
}

}  // namespace lockstep
