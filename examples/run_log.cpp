// spdlog keeps the file; the console is a few lines of our own. Read next: terminal.cpp.
#include "examples/run_log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>

#include <cerrno>

#include "core/error.h"
#include "examples/output_file.h"
#include "examples/terminal.h"

namespace lockstep {

namespace {

constexpr const char* clear_line = "\r\x1b[K";

std::shared_ptr<spdlog::logger> open_log(const std::string& path) {
  make_file_limits_errors();
  std::shared_ptr<spdlog::logger> log;
  try {
    log = std::make_shared<spdlog::logger>(
        "run", std::make_shared<spdlog::sinks::basic_file_sink_mt>(path));
  } catch (const spdlog::spdlog_ex&) {
    fail_to("write", path, errno);
  }
  log->set_pattern("%Y-%m-%d %H:%M:%S.%e  %v");
  log->flush_on(spdlog::level::info);
  // Called inside the failing call, whose caller gets the error.
  log->set_error_handler([path](const std::string&) { fail_to("write", path, errno); });
  return log;
}

}  // namespace

RunLog::RunLog(const std::string& path, const std::string& progress, std::FILE* console)
    : file_(open_log(path)), console_(console), prints_(progress != "none") {
  const std::string terminal = watching_terminal();
  rewrites_ = progress == "line" || (progress == "auto" && !terminal.empty());
  if (rewrites_ && !terminal.empty()) columns_ = terminal_columns(terminal);
}

RunLog::~RunLog() {
  if (!open_line_) return;
  std::fputc('\n', console_);
  std::fflush(console_);
}

void RunLog::detail(const std::string& text) {
  file_->info(text);
}

void RunLog::info(const std::string& text) {
  file_->info(text);
  if (prints_) print(text);
}

void RunLog::warn(const std::string& text) {
  file_->info("warning: " + text);
  print("warning: " + text);
}

void RunLog::last_words(const std::string& text) noexcept try {
  file_->info("stopped: " + text);
} catch (...) {
}

void RunLog::progress(const std::string& text) {
  if (!rewrites_) return;
  // A line that wraps cannot be rewritten.
  fmt::print(console_, "{}{}", clear_line, text.substr(0, columns_ - 1));
  std::fflush(console_);
  open_line_ = true;
}

void RunLog::print(const std::string& text) {
  fmt::print(console_, "{}{}\n", open_line_ ? clear_line : "", text);
  std::fflush(console_);
  open_line_ = false;
}

}  // namespace lockstep
