// Starting, watching and ending processes. Read next: training_test.cpp.
#include "tests/examples/tiny_run.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <regex>
#include <sstream>
#include <thread>

#include "examples/safetensors.h"

namespace lockstep {

namespace {

constexpr auto longest_wait = std::chrono::minutes(1);

// 32 lines that begin alike and end differently: 1088 bytes, of which 102 are for validation.
std::string text() {
  std::string lines;
  for (int i = 0; i < 32; ++i)
    lines += std::string("and there was ") + static_cast<char>('a' + i % 26) + " and it was good\n";
  return lines;
}

// The same for all tests of the program.
const PrepareResult& tokens() {
  static const TempFolder folder;
  static const PrepareResult result = [] {
    write_text(folder / "text", text());
    return prepare({.text = folder / "text", .out = folder / "tokens"});
  }();
  return result;
}

// A trainer that runs on devices, which these tests run on then: tests/cuda_on_cpu names it.
const char* device_trainer() {
  return std::getenv("TINY_RUN_DEVICE_TRAINER");
}

Json tiny_config() {
  return {{"model", {{"n_layer", 2}, {"n_head", 2}, {"d_model", 32}, {"max_seq_len", 32}}},
          {"data", {{"train", tokens().train}, {"val", tokens().val}}},
          {"optim", {{"lr", 3e-3}, {"schedule", "constant"}}},
          {"train",
           {{"steps", 6},
            {"seq_len", 32},
            {"micro_batch", 2},
            {"threads", 1},
            {"device", device_trainer() ? "cuda" : "cpu"}}},
          {"log", {{"progress", "plain"}}}};
}

// Of all tensors that the files of a checkpoint hold, pieces put together: the same for all ways to
// cut the same tensors. Only residuals and momenta that are sent are told apart by rank.
std::string digest_of(const std::string& checkpoint) {
  std::map<std::string, std::map<int64_t, std::string>> pieces;  // by tensor and first element
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
    if (entry.path().extension() != ".safetensors") continue;
    const SafetensorsFile file(entry.path());
    for (const auto& tensor : file.entries()) {
      std::smatch part;
      static const std::regex range("\\[(\\d+):\\d+\\]");
      const bool cut = std::regex_search(tensor.name, part, range);
      std::string name = cut ? part.prefix().str() + part.suffix().str() : tensor.name;
      if (name.ends_with(".residual") || name.ends_with(".rank_momentum"))
        name += " of " + entry.path().stem().string();
      const auto bytes = file.bytes(tensor.name);
      pieces[name][cut ? std::stoll(part[1]) : 0].assign(
          reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
  }
  std::string digest;
  for (const auto& [name, by_begin] : pieces) {
    std::string all;
    for (const auto& [begin, bytes] : by_begin) all += bytes;
    digest += name + " " + std::to_string(all.size()) + " " +
              std::to_string(XXH3_64bits(all.data(), all.size())) + "\n";
  }
  return digest;
}

std::string unique_name() {
  static int count = 0;
  return ".process-" + std::to_string(++count);
}

}  // namespace

Process::Process(const std::string& folder, const std::string& command)
    : output_(folder + "/" + unique_name() + ".out"), errors_(output_ + ".err") {
  pid_ = fork();
  if (pid_ != 0) return;
  if (chdir(folder.c_str()) != 0) _exit(99);
  const std::string line = "exec " + command;
  dup2(open(output_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), STDOUT_FILENO);
  dup2(open(errors_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), STDERR_FILENO);
  execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
  _exit(99);
}

Process::~Process() {
  if (ended()) return;
  send(SIGKILL);
  waitpid(pid_, &status_, 0);
}

void Process::send(int signal) const {
  kill(pid_, signal);
}

bool Process::ended() {
  if (!ended_) ended_ = waitpid(pid_, &status_, WNOHANG) == pid_;
  return ended_;
}

bool Process::wait_until(const std::function<bool()>& happened) {
  const auto limit = std::chrono::steady_clock::now() + longest_wait;
  while (!happened()) {
    if (ended() || std::chrono::steady_clock::now() > limit) return happened();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

Ended Process::wait() {
  wait_until([] { return false; });
  if (!ended()) {
    ADD_FAILURE() << "still running after a minute";
    send(SIGKILL);
    waitpid(pid_, &status_, 0);
    ended_ = true;
  }
  const int code = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  return {code, read_text(output_), read_text(errors_)};
}

TinyRun::TinyRun()
    : program_(device_trainer() ? device_trainer() : LOCKSTEP_BINARY_DIR "/examples/trainer") {}

void TinyRun::configure(const std::string& name, const Json& changes, Launch launch) {
  Json config = tiny_config();
  config["run_dir"] = name;
  if (launch == Launch::alone) config["dist"] = {{"backend", "local"}, {"local_ranks", 2}};
  write_text(folder_ / name + ".json", merged(config, changes).dump(1));
}

std::string TinyRun::trainer(Launch launch) const {
  if (launch == Launch::alone) return program_;
  return LOCKSTEP_MPIRUN_COMMAND " -np " + std::to_string(ranks_) + " " + program_;
}

Trace TinyRun::trained(const std::string& name, const Json& changes, Launch launch) {
  configure(name, changes, launch);
  const Ended ended = train(name, launch);
  EXPECT_EQ(ended.code, 0) << name << ": " << ended.errors;
  return trace(name);
}

Trace TinyRun::trace(const std::string& name) const {
  Trace trace;
  trace.log = read_text(folder_ / name + "/log.txt");
  std::istringstream file(read_text(folder_ / name + "/metrics.jsonl"));
  for (std::string line; std::getline(file, line); ++trace.lines) {
    const Json step = Json::parse(line);
    trace.steps[step["step"]] = step;
  }
  for (const auto& [t, step] : trace.steps)
    trace.bits += std::to_string(t) + " " + step["loss"].dump() + " " + step["grad_norm"].dump() +
                  (step.contains("val_loss") ? " " + step["val_loss"].dump() : "") + "\n";
  if (const auto saved = checkpoints(name); !saved.empty())
    trace.bits += saved.back() + "\n" + digest_of(folder_ / name + "/checkpoints/" + saved.back());
  return trace;
}

int64_t TinyRun::steps_done(const std::string& name) const {
  const std::string file = read_text(folder_ / name + "/metrics.jsonl");
  return std::count(file.begin(), file.end(), '\n');
}

std::vector<std::string> TinyRun::checkpoints(const std::string& name) const {
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& entry :
       std::filesystem::directory_iterator(folder_ / name + "/checkpoints", none))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

pid_t rank_of_mpirun(pid_t mpirun, int rank) {
  const std::string variable = "OMPI_COMM_WORLD_RANK=" + std::to_string(rank);
  std::istringstream children(read_text(fmt::format("/proc/{0}/task/{0}/children", mpirun)));
  for (pid_t child; children >> child;) {
    const std::string environment = read_text(fmt::format("/proc/{}/environ", child));
    if (environment.find(variable + '\0') != std::string::npos) return child;
  }
  return 0;
}

std::string host_of_tests() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

void expect_one_line(const Ended& ended, int code, const std::vector<std::string>& parts) {
  EXPECT_EQ(ended.code, code) << ended.errors;
  EXPECT_EQ(ended.errors.rfind("trainer: ", 0), 0u) << ended.errors;
  EXPECT_EQ(std::count(ended.errors.begin(), ended.errors.end(), '\n'), 1) << ended.errors;
  for (const std::string& part : parts)
    EXPECT_NE(ended.errors.find(part), std::string::npos)
        << "\"" << part << "\" is not in: " << ended.errors;
}

}  // namespace lockstep
