// What people read of a run: log.txt in the run folder, and the console. Rank 0 has one; what goes
// wrong elsewhere travels as an error (agree.h) or is told by main, with rank and host in front.
// Numbers for programs are in metrics.h. Read next: terminal.h.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

namespace spdlog {
class logger;
}

namespace lockstep {

class RunLog {
 public:
  // Appends to the file at `path`. `progress` is log.progress: "line" | "plain" | "auto" | "none".
  // The console is `console`, stdout if nothing else is said. Errors as for OutputFile; a write
  // that fails later is one, too.
  RunLog(const std::string& path, const std::string& progress, std::FILE* console = stdout);
  ~RunLog();  // leaves the cursor at the start of a line
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  void detail(const std::string& text);  // log.txt only
  void info(const std::string& text);    // log.txt and, unless progress is "none", the console
  void warn(const std::string& text);    // both, marked "warning: "

  // What ended the run; log.txt only, because main tells it to people. Never an error itself: that
  // would hide the one that came first.
  void last_words(const std::string& text) noexcept;

  // What changes all the time: the line that rewrites itself, where there is one, until the next
  // line of any kind takes its place. Not in log.txt.
  void progress(const std::string& text);

 private:
  void print(const std::string& text);

  std::shared_ptr<spdlog::logger> file_;
  std::FILE* console_;
  bool rewrites_, prints_;
  int columns_ = 80;
  bool open_line_ = false;  // the cursor stands behind a progress line
};

}  // namespace lockstep
