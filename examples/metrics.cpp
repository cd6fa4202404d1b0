// metrics.jsonl. Read next: run_log.h.
#include "examples/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/error.h"
#include "examples/output_file.h"

namespace lockstep {

namespace {

struct ToJson {
  nlohmann::ordered_json object;

  template <class T>
  void operator()(const char* name, const T& value) {
    object[name] = value;
  }
  void operator()(const char* name, const std::optional<double>& value) {
    if (value) object[name] = *value;
  }
};

// The last bytes of a file, as many as hold its last line.
std::string read_end(int descriptor, int64_t size) {
  constexpr int64_t longest_line = 1 << 16;
  std::string text(std::min(size, longest_line), '\0');
  const int64_t done = pread(descriptor, text.data(), text.size(), size - text.size());
  text.resize(std::max<int64_t>(done, 0));
  return text;
}

std::string_view last_line(std::string_view text) {
  return text.substr(text.rfind('\n') + 1);  // npos + 1 = 0
}

// Of a line of metrics; 0 if it is none.
int64_t attempt_of(std::string_view line) {
  const auto value = nlohmann::json::parse(line, nullptr, false);
  const bool known =
      value.is_object() && value.contains("attempt") && value["attempt"].is_number_integer();
  return known ? value["attempt"].get<int64_t>() : 0;
}

}  // namespace

std::string to_json(const StepMetrics& metrics) {
  ToJson v;
  metrics.visit(v);
  return v.object.dump();
}

MetricsFile::MetricsFile(const std::string& path) : path_(path) {
  descriptor_ = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail_to("write", path_, errno);
  const int64_t size = lseek(descriptor_, 0, SEEK_END);
  std::string end = read_end(descriptor_, size);
  const std::string_view open_line = last_line(end);
  if (attempt_of(open_line) > 0) {
    if (write(descriptor_, "\n", 1) != 1) fail_to("write", path_, errno);
    end += '\n';
  } else if (!open_line.empty()) {
    if (ftruncate(descriptor_, size - open_line.size()) != 0) fail_to("cut", path_, errno);
    end.resize(end.size() - open_line.size());
  }
  if (end.empty()) return;
  end.pop_back();
  const int64_t attempt = attempt_of(last_line(end));
  if (attempt == 0) {
    close(descriptor_);
    fail(Exit::data,
         "[metrics] the last line of {} is not the metrics of a step; move the file away", path_);
  }
  attempt_ = attempt + 1;
}

MetricsFile::~MetricsFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void MetricsFile::append(StepMetrics metrics) {
  metrics.attempt = attempt_;
  const std::string line = to_json(metrics) + '\n';
  const ssize_t done = write(descriptor_, line.data(), line.size());
  if (done != static_cast<ssize_t>(line.size())) fail_to("write", path_, done < 0 ? errno : ENOSPC);
}

}  // namespace lockstep
