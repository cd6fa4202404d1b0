// Comparing a checkpoint's run with this one, key by key. Read next: checkpoint.h.
#include "examples/saved_run.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"

namespace lockstep {

namespace {

using Json = nlohmann::json;

// Keys, or sections (ending in "."), that may differ. What is noted may change bits of what is
// learnt; what is free, and not noted, changes none. Whatever is in neither list, as a new key, is
// refused.
constexpr std::array free_keys = {"run_dir",
                                  "log.",
                                  "checkpoint.",
                                  "train.eval_every",
                                  "train.eval_batches",
                                  "train.sample_every",
                                  "train.sample_tokens",
                                  "train.sample_prompt",
                                  "train.max_skipped",
                                  "train.recompute",
                                  "train.cuda_graph",
                                  "data.train",
                                  "data.val",
                                  "data.workers",
                                  "data.tokenizer",
                                  "model.init_from",
                                  "dist.backend",
                                  "dist.local_ranks",
                                  "dist.zero_stage",
                                  "dist.accumulate",
                                  "dist.reducer",
                                  "dist.bucket_mb",
                                  "dist.overlap",
                                  "dist.timeout_s",
                                  "dist.start_timeout_s",
                                  "dist.checkpoint_timeout_s",
                                  "dist.eval_timeout_s",
                                  "dist.verify_every",
                                  "train.global_batch",
                                  "train.threads"};
constexpr std::array noted_keys = {"train.steps", "train.micro_batch", "train.reproducible",
                                   "dist.nccl_reduce", "dist.compression."};

template <size_t n>
bool matches(const std::array<const char*, n>& patterns, std::string_view key) {
  return std::any_of(patterns.begin(), patterns.end(), [&](std::string_view pattern) {
    return pattern.ends_with('.') ? key.starts_with(pattern) : key == pattern;
  });
}

// "/train/seed" of flatten() as "train.seed"; lists as a whole.
std::string key_of(std::string pointer) {
  std::replace(pointer.begin(), pointer.end(), '/', '.');
  return pointer.substr(1);
}

// Of `after`, what is not the same in `before`.
std::vector<ConfigChange> changes(const Json& before, const Json& after) {
  std::vector<ConfigChange> all;
  for (const auto& [pointer, value] : after.items()) {
    const std::string was = before.contains(pointer) ? before.at(pointer).dump() : "(absent)";
    if (was != value.dump()) all.push_back({key_of(pointer), was, value.dump()});
  }
  return all;
}

std::optional<ConfigChange> forbidden(const std::vector<ConfigChange>& changes) {
  for (const ConfigChange& change : changes)
    if (!matches(noted_keys, change.key) && !matches(free_keys, change.key)) return change;
  return {};
}

void refuse_other_samples(const SavedRun& saved, const SavedRun& now) {
  if (saved.global_batch != now.global_batch)
    fail(Exit::config,
         "[train.global_batch] is {} samples but the checkpoint was made with {}; set it to {} (0, "
         "the default, follows the number of ranks)",
         now.global_batch, saved.global_batch, saved.global_batch);
  if (saved.data_identity != now.data_identity)
    fail(Exit::config, "[data.train] is other data ({}) than the checkpoint was made with ({})",
         now.data_identity, saved.data_identity);
  if (saved.tokenizer != now.tokenizer)
    fail(Exit::config,
         "[data.tokenizer] is another one ({}) than the checkpoint was made with ({}); set it back",
         now.tokenizer, saved.tokenizer);
}

constexpr const char* kOtherBits = "; bits may differ";

// Lines on what is allowed to differ, and does.
struct Notes {
  std::vector<std::string> lines;

  template <class T>
  void compare(std::string_view what, const T& before, const T& after,
               const char* effect = kOtherBits) {
    if (before != after)
      lines.push_back(fmt::format("{} was {} and is {} now{}", what, before, after, effect));
  }
};

using Environment = std::map<std::string, std::string>;

void compare_environments(Notes& notes, const Environment& before, const Environment& after) {
  const auto value_in = [](const Environment& variables, const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? "not set" : "\"" + found->second + "\"";
  };
  Environment either = before;
  either.insert(after.begin(), after.end());
  for (const auto& [name, value] : either)
    if (!name.starts_with("OMPI_"))  // how bytes travel, never what they are
      notes.compare("the environment's " + name, value_in(before, name), value_in(after, name));
}

}  // namespace

std::string SavedRun::resume() const {
  return Json::parse(config).value(Json::json_pointer("/checkpoint/resume"), "");
}

std::string SavedRun::to_json() const {
  return Json{{"config", Json::parse(config)},
              {"data_identity", data_identity},
              {"tokenizer", tokenizer},
              {"step", step},
              {"global_batch", global_batch},
              {"skipped_in_a_row", skipped_in_a_row},
              {"ranks", ranks},
              {"accumulate", accumulate},
              {"threads", threads},
              {"cpu", cpu},
              {"environment", environment}}
      .dump(1, ' ', false, Json::error_handler_t::replace);  // an environment may hold any bytes
}

SavedRun SavedRun::from_json(const std::string& text, const std::string& where) {
  try {
    const Json json = Json::parse(text);
    return {.config = json.at("config").dump(),
            .data_identity = json.at("data_identity"),
            .tokenizer = json.at("tokenizer"),
            .step = json.at("step"),
            .global_batch = json.at("global_batch"),
            .skipped_in_a_row = json.at("skipped_in_a_row"),
            .ranks = json.at("ranks"),
            .accumulate = json.at("accumulate"),
            .threads = json.at("threads"),
            .cpu = json.at("cpu"),
            .environment = json.at("environment")};
  } catch (const Json::exception& error) {
    fail(Exit::data,
         "[resume] {} holds no training run ({}); a folder that training saved is right", where,
         error.what());
  }
}

std::optional<ConfigChange> other_run(const std::string& before, const std::string& after) {
  const Json was = Json::parse(before, nullptr, false);
  if (!was.is_object()) fail(Exit::data, "[run_dir] its config.json is not JSON; move it away");
  return forbidden(changes(was.flatten(), Json::parse(after).flatten()));
}

std::vector<std::string> check_resumable(const SavedRun& saved, const SavedRun& now) {
  const Json before = Json::parse(saved.config).flatten(),
             after = Json::parse(now.config).flatten();
  const std::vector<ConfigChange> changed = changes(before, after);
  if (const auto change = forbidden(changed))
    fail(Exit::config,
         "[{}] is {} but the checkpoint was made with {}; set it back, or start another run_dir "
         "with model.init_from",
         change->key, change->after, change->before);
  refuse_other_samples(saved, now);

  Notes notes;
  for (const ConfigChange& change : changed)
    if (matches(noted_keys, change.key))
      notes.compare(change.key, change.before, change.after,
                    change.key == "train.steps" ? "; the learning rate follows" : kOtherBits);
  // One tree over all micro-batches of a step, whoever computes and adds them.
  const bool any_world = before.value("/train/reproducible", "") == "any_world" &&
                         after.value("/train/reproducible", "") == "any_world";
  notes.compare("the number of ranks", saved.ranks, now.ranks,
                any_world ? ": the same samples and the same bits"
                          : ": the same samples, but bits may differ");
  if (!any_world)
    notes.compare("the sum over micro-batches (dist.accumulate)", saved.accumulate, now.accumulate);
  notes.compare("threads per rank", saved.threads, now.threads);
  notes.compare("the instruction set", saved.cpu, now.cpu);
  compare_environments(notes, saved.environment, now.environment);
  return std::move(notes.lines);
}

}  // namespace lockstep
