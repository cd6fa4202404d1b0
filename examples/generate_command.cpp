// `trainer generate`: text from the weights of a checkpoint. Read next: generate.h.
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "core/allocator.h"
#include "core/parallel.h"
#include "data/tokenizer.h"
#include "dist/launch.h"
#include "examples/command.h"
#include "examples/generate.h"
#include "examples/saved_model.h"
#include "examples/saved_state.h"

namespace lockstep {

namespace {

struct Options {
  ModelSource source;
  std::optional<std::string> prompt;
  GenerateOptions generate;
};

void generate_action(Options options) {
  const auto [checkpoint, config, trained_with] = find_model(options.source);
  const auto tokenizer = open_tokenizer(config.data.tokenizer);
  if (!tokenizer)
    fail(Exit::config,
         "[generate] {} was trained with data.tokenizer none, so its tokens have no text; train "
         "with a tokenizer",
         checkpoint.path);
  if (tokenizer->identity() != trained_with)
    fail(Exit::data, "[generate] {} is another tokenizer ({}) than {} was trained with ({})",
         config.data.tokenizer, tokenizer->identity(), checkpoint.path, trained_with);
  const auto prompt = tokenizer->encode(options.prompt.value_or(config.train.sample_prompt));
  if (prompt.empty())
    fail(Exit::usage, "[generate] --prompt is empty; text starts from at least one token");

  options.generate.vocab_size = tokenizer->vocab_size();
  set_num_threads(cores().usable);
  Allocator allocator(host_memory());
  AllocatorScope scope(allocator);
  Gpt model(config.model, config.train.dtype(), config.train.seed);
  const SavedState state(checkpoint);
  for (const NamedTensor& parameter : model.parameters()) {
    state.read(parameter);
    check_finite(parameter, checkpoint.path);
  }
  fmt::print("{}\n", tokenizer->decode(generate(model, prompt, options.generate)));
}

}  // namespace

void add_generate_command(CLI::App& app, Exit& exit) {
  CLI::App* command = app.add_subcommand("generate", "let a trained model write");
  auto options = std::make_shared<Options>();
  add_model_source(*command, options->source);
  command->add_option("--prompt", options->prompt,
                      "what the text starts from; default: the run's train.sample_prompt");
  GenerateOptions& g = options->generate;
  command->add_option("--tokens", g.tokens, "how many to append")
      ->check(CLI::Range(int64_t{0}, int64_t{1'000'000}))
      ->capture_default_str();
  command->add_option("--temperature", g.temperature, "0: always the most likely token")
      ->check(finite())
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
