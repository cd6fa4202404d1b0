// `trainer generate`: text from the weights of a checkpoint. Read next: generate.h.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "core/allocator.h"
#include "core/parallel.h"
#include "data/tokenizer.h"
#include "dist/launch.h"
#include "examples/checkpoint.h"
#include "examples/command.h"
#include "examples/config_io.h"
#include "examples/generate.h"
#include "examples/saved_run.h"
#include "examples/saved_state.h"

namespace lockstep {

namespace {

struct Options {
  std::string run, checkpoint;
  std::optional<std::string> prompt;
  GenerateOptions generate;
};

Checkpoint find_checkpoint(const Options& options) {
  if (!options.checkpoint.empty()) return open_checkpoint(options.checkpoint);
  const auto latest =
      find_latest_checkpoint(options.run + "/checkpoints", [](const std::string& why) {
        std::fprintf(stderr, "trainer: passed over a checkpoint: %s\n", why.c_str());
      });
  if (!latest)
    fail(Exit::data, "[generate] {} has no checkpoint; name the run_dir of a run that saved one",
         options.run);
  return *latest;
}

void generate_action(Options options) {
  const Checkpoint checkpoint = find_checkpoint(options);
  const SavedRun saved = SavedRun::from_json(checkpoint.metadata, checkpoint.path);
  const Config config = parse_config(saved.config, checkpoint.path);
  const auto tokenizer = open_tokenizer(config.data.tokenizer);
  if (!tokenizer)
    fail(Exit::config,
         "[generate] {} was trained with data.tokenizer none, so its tokens have no text; train "
         "with a tokenizer",
         checkpoint.path);
  const auto prompt = tokenizer->encode(options.prompt.value_or(config.train.sample_prompt));
  if (prompt.empty())
    fail(Exit::usage, "[generate] --prompt is empty; text starts from at least one token");

  options.generate.vocab_size = tokenizer->vocab_size();
  set_num_threads(cores().usable);
  Allocator allocator(host_memory());
  AllocatorScope scope(allocator);
  Gpt model(config.model, config.train.dtype(), config.train.seed);
  const SavedState state(checkpoint);
  for (const NamedTensor& parameter : model.parameters()) state.read(parameter);
  fmt::print("{}\n", tokenizer->decode(generate(model, prompt, options.generate)));
}

}  // namespace

void add_generate_command(CLI::App& app, Exit& exit) {
  CLI::App* command = app.add_subcommand("generate", "let a trained model write");
  auto options = std::make_shared<Options>();
  CLI::Option_group* source = command->add_option_group("model", "one of");
  source->add_option("--run", options->run, "run folder; its newest complete checkpoint is used")
      ->type_name("FOLDER");
  source->add_option("--checkpoint", options->checkpoint, "one checkpoint")->type_name("FOLDER");
  source->require_option(1);
  command->add_option("--prompt", options->prompt,
                      "what the text starts from; default: the run's train.sample_prompt");
  GenerateOptions& g = options->generate;
  command->add_option("--tokens", g.tokens, "how many to append")
      ->check(CLI::Range(int64_t{0}, int64_t{1'000'000}))
      ->capture_default_str();
  command->add_option("--temperature", g.temperature, "0: always the most likely token")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--top-k", g.top_k, "only the so many most likely tokens; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--seed", g.seed, "the same seed gives the same text")->capture_default_str();
  command->footer(
      "Example:\n"
      "  trainer generate --run runs/quickstart --prompt 'And God said' --tokens 300");
  command->callback([options, &exit] {
    generate_action(*options);
    exit = Exit::ok;
  });
}

}  // namespace lockstep
