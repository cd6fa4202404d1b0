// What people see: log.txt, plain lines, and the one line that rewrites itself on a terminal.
#include "examples/run_log.h"

#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <regex>
#include <sstream>

#include "examples/build_info.h"
#include "examples/terminal.h"
#include "tests/file_test_util.h"

namespace lockstep {
namespace {

// What a log with this `log.progress` shows on the console.
std::string shown(const std::string& log_path, const std::string& progress) {
  std::FILE* console = std::tmpfile();
  {
    RunLog log(log_path, progress, console);
    log.detail("in {detail}");
    log.progress("step 1");
    log.info("information");
    log.progress("step 2");
    log.progress("step 3");
    log.warn("careful");
  }
  std::rewind(console);
  std::string text(1000, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), console));
  std::fclose(console);
  return text;
}

TEST(RunLog, PlainLines) {
  TempFolder folder;
  EXPECT_EQ(shown(folder / "log.txt", "plain"), "information\nwarning: careful\n");
  EXPECT_EQ(shown(folder / "log.txt", "none"), "warning: careful\n");
}

TEST(RunLog, LineThatRewritesItself) {
  TempFolder folder;
  EXPECT_EQ(shown(folder / "log.txt", "line"),
            "\r\x1b[Kstep 1\r\x1b[Kinformation\n\r\x1b[Kstep 2\r\x1b[Kstep 3"
            "\r\x1b[Kwarning: careful\n");
}

TEST(RunLog, FileIsAppendedWithTime) {
  TempFolder folder;
  shown(folder / "log.txt", "plain");
  shown(folder / "log.txt", "plain");
  std::istringstream text(read_text(folder / "log.txt"));
  const std::regex stamped(R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  (.*))");
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    std::smatch match;
    ASSERT_TRUE(std::regex_match(line, match, stamped)) << line;
    lines.push_back(match[1]);
  }
  const std::vector<std::string> once = {"in {detail}", "information", "warning: careful"};
  std::vector<std::string> twice = once;
  twice.insert(twice.end(), once.begin(), once.end());
  EXPECT_EQ(lines, twice);
}

TEST(RunLog, CannotBeWritten) {
  TempFolder folder;
  expect_error(Exit::config, {"cannot write " + (folder / "no/log.txt")}, [&] {
    write_text(folder / "no", "a file where the folder should be");
    RunLog log(folder / "no/log.txt", "none");
  });
  RunLog log("/dev/full", "none");
  expect_error(Exit::restart, {"cannot write /dev/full: No space left on device"},
               [&] { log.info("text"); });
}

// Runs `body` on a terminal of its own, 30 characters wide, and returns what that showed.
std::string on_terminal(const std::function<void()>& body) {
  int terminal = -1;
  const winsize size{.ws_row = 10, .ws_col = 30, .ws_xpixel = 0, .ws_ypixel = 0};
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  if (child == 0) {
    body();
    _exit(0);
  }
  std::string text(1000, '\0');
  size_t length = 0;
  for (ssize_t done; (done = read(terminal, &text[length], text.size() - length)) > 0;)
    length += done;
  close(terminal);
  waitpid(child, nullptr, 0);
  text.resize(length);
  return text;
}

TEST(Terminal, RewritesInAutoModeAndNeverWraps) {
  TempFolder folder;
  unsetenv("OMPI_COMM_WORLD_SIZE");
  EXPECT_EQ(on_terminal([&] {
              RunLog log(folder / "log.txt", "auto");
              log.progress(std::string(100, 'x'));
            }),
            "\r\x1b[K" + std::string(29, 'x') + "\r\n");
}

TEST(Terminal, APipeIsNone) {
  const pid_t child = fork();
  if (child == 0) {
    int ends[2];
    const bool piped = pipe(ends) == 0 && dup2(ends[1], STDOUT_FILENO) >= 0;
    _exit(piped && watching_terminal().empty() ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(terminal_columns("/dev/null"), 80);
}

TEST(BuildInfo, SaysWhatThisIs) {
  const std::string build = build_info();
  EXPECT_TRUE(std::regex_match(
      build, std::regex("commit [0-9a-z]+(-dirty)?, compiler .+, flags .*-march=.+, "
                        "program [0-9a-f]{16}")))
      << build;
  EXPECT_EQ(build, build_info());
  EXPECT_FALSE(cpu_compiled_for().empty());
  EXPECT_NE(cpu_present().find(','), std::string::npos) << cpu_present();
}

}  // namespace
}  // namespace lockstep
