// One exchange of small texts: "<exit code>\n<result or message>" of every rank.
#include "examples/agree.h"

#include <algorithm>
#include <charconv>

namespace lockstep {

namespace {

struct Outcome {
  int code = 0;
  std::string text;
  bool operator==(const Outcome&) const = default;
};

Outcome attempt(const std::function<std::string()>& work) {
  try {
    return {0, work()};
  } catch (const Error& error) {
    return {static_cast<int>(error.code()), error.what()};
  } catch (const std::exception& error) {
    return {static_cast<int>(Exit::internal), error.what()};
  }
}

Outcome parse(const std::vector<std::byte>& bytes) {
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const size_t line_end = text.find('\n');
  check(line_end != std::string::npos, "[agree] \"{}\" is no outcome", text);
  Outcome outcome{-1, text.substr(line_end + 1)};
  std::from_chars(text.data(), text.data() + line_end, outcome.code);
  return outcome;
}

}  // namespace

std::vector<std::string> all_or_none(Communicator& communicator,
                                     const std::function<std::string()>& work) {
  const Outcome mine = attempt(work);
  const std::string message = fmt::format("{}\n{}", mine.code, mine.text);
  std::vector<Outcome> outcomes;
  for (const auto& bytes : communicator.all_gather_bytes(std::as_bytes(std::span(message))))
    outcomes.push_back(parse(bytes));

  const auto failed =
      std::find_if(outcomes.begin(), outcomes.end(), [](auto& o) { return o.code != 0; });
  if (failed != outcomes.end()) {
    const bool alike =
        std::all_of(outcomes.begin(), outcomes.end(), [&](auto& o) { return o == *failed; });
    const int rank = static_cast<int>(failed - outcomes.begin());
    const std::string who = alike ? "" : communicator.topology().describe(rank) + ": ";
    throw Error(static_cast<Exit>(failed->code), who + failed->text);
  }
  std::vector<std::string> results;
  for (Outcome& outcome : outcomes) results.push_back(std::move(outcome.text));
  return results;
}

std::string on_rank_0(Communicator& communicator, const std::function<std::string()>& work) {
  const bool first = communicator.rank() == 0;
  return all_or_none(communicator, [&] { return first ? work() : std::string(); })[0];
}

}  // namespace lockstep
