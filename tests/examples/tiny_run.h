// Tiny training runs of the built `trainer`, each a process (or mpirun's) as a user starts it: 2
// layers of width 32 on 32 tokens of one short text, so that a run costs little more than its
// start. Read next: tiny_run.cpp.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "data/prepare.h"
#include "tests/file_test_util.h"

namespace lockstep {

using Json = nlohmann::json;

// `{}` is null, which would not change nothing but replace all.
inline Json merged(Json base, const Json& changes) {
  if (!changes.is_null()) base.merge_patch(changes);
  return base;
}

struct Ended {
  int code = -1;  // 128 + n after signal n
  std::string output, errors;
};

// A shell command in a folder; it must be one program (which then has pid()).
class Process {
 public:
  Process(const std::string& folder, const std::string& command);
  ~Process();  // by SIGKILL, if it still runs
  Process(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void send(int signal) const;
  Ended wait();  // at most a minute, then it is killed and the test fails

  // Polls until `happened` or the process has ended; false if it ended, or after a minute.
  bool wait_until(const std::function<bool()>& happened);

 private:
  bool ended();

  const std::string output_, errors_;
  pid_t pid_ = -1;
  int status_ = 0;
  bool ended_ = false;
};

// What a run left in its folder.
struct Trace {
  std::map<int64_t, Json> steps;  // of metrics.jsonl, the newest attempt's
  int64_t lines = 0;              // of metrics.jsonl
  std::string log;                // log.txt

  // All digits of every loss and norm, and a checksum of each tensor of the newest checkpoint,
  // however it is cut: two runs are the same to the bit if these texts are.
  std::string bits;
};

enum class Launch { alone, mpirun };

class TinyRun : public testing::Test {
 protected:
  TinyRun();

  // Writes NAME.json: the tiny config with `changes` merged in, run_dir NAME. With Launch::alone
  // two local ranks, if `changes` say nothing else.
  void configure(const std::string& name, const Json& changes = {}, Launch launch = Launch::alone);

  // "[mpirun ...] trainer": what a command starts with.
  std::string trainer(Launch launch = Launch::alone) const;

  Ended command(const std::string& text) const { return Process(folder_.path(), text).wait(); }

  // Trains NAME.json until it ends by itself.
  Ended train(const std::string& name, Launch launch = Launch::alone) const {
    return command(trainer(launch) + " --config " + name + ".json");
  }
  // configure() and train(), which must end with 0.
  Trace trained(const std::string& name, const Json& changes = {}, Launch launch = Launch::alone);

  Trace trace(const std::string& name) const;
  int64_t steps_done(const std::string& name) const;  // lines of metrics.jsonl

  // NAME/checkpoints' names, sorted.
  std::vector<std::string> checkpoints(const std::string& name) const;

  TempFolder folder_;
  std::string program_;  // what is run: the trainer that was built, or another
  int ranks_ = 2;        // of Launch::mpirun
};

// The process that mpirun started as `rank`, from its environment; 0 if there is none.
pid_t rank_of_mpirun(pid_t mpirun, int rank);

std::string host_of_tests();

// One line on stderr which begins with "trainer: " and has all of `parts`.
void expect_one_line(const Ended& ended, int code, const std::vector<std::string>& parts);

}  // namespace lockstep
