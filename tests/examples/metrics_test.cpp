// metrics.jsonl: every line parses, whatever happened to the run that wrote it.
#include "examples/metrics.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/file_test_util.h"

namespace lockstep {
namespace {

using nlohmann::json;

std::vector<json> lines_of(const std::string& path) {
  std::vector<json> lines;
  std::istringstream text(read_text(path));
  for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
  return lines;
}

StepMetrics at(int64_t step) {
  StepMetrics m;
  m.step = step;
  return m;
}

TEST(Metrics, OneLine) {
  StepMetrics m = at(3);
  m.loss = 0.1;
  EXPECT_EQ(
      to_json(m),
      R"({"step":3,"attempt":0,"loss":0.1,"lr":0.0,"grad_norm":0.0,"tokens":0,)"
      R"("samples_per_s":0.0,"tokens_per_s":0.0,"step_ms":0.0,"compute_ms":0.0,"comm_ms":0.0,)"
      R"("exposed_comm_ms":0.0,"wait_ms":0.0,"data_ms":0.0,"slowest_rank":0,"imbalance":1.0,"wire_bytes":0,"param_bytes":0,)"
      R"("host_bytes":0,"compression":1.0,"peak_bytes":0,"allocations":0,"skipped":0})");
}

TEST(Metrics, WhatIsNotFiniteIsNullAndWhatIsUnknownIsLeftOut) {
  StepMetrics m;
  m.loss = std::numeric_limits<double>::quiet_NaN();
  m.grad_norm = std::numeric_limits<double>::infinity();
  m.val_loss = 2.5;
  const json line = json::parse(to_json(m));
  EXPECT_TRUE(line["loss"].is_null());
  EXPECT_TRUE(line["grad_norm"].is_null());
  EXPECT_EQ(line["val_loss"], 2.5);
  EXPECT_FALSE(line.contains("mfu"));
}

TEST(Metrics, AttemptsCount) {
  TempFolder folder;
  const std::string path = folder / "metrics.jsonl";
  for (int64_t attempt = 1; attempt <= 3; ++attempt) {
    MetricsFile file(path);
    EXPECT_EQ(file.attempt(), attempt);
    for (int64_t step = 1; step <= 2; ++step) {
      file.append(at(step));
      EXPECT_EQ(lines_of(path).size(), static_cast<size_t>(2 * (attempt - 1) + step));
    }
  }
  const auto lines = lines_of(path);
  EXPECT_EQ(lines[1]["attempt"], 1);
  EXPECT_EQ(lines[5]["attempt"], 3);
  EXPECT_EQ(lines[5]["step"], 2);
}

// A run killed inside its last write: at any byte of it.
TEST(Metrics, TornLastLine) {
  TempFolder folder;
  const std::string path = folder / "metrics.jsonl";
  MetricsFile(path).append(at(1));
  MetricsFile(path).append(at(2));
  const std::string whole = read_text(path);
  const size_t first = whole.find('\n') + 1;
  for (size_t length = 0; length <= whole.size(); ++length) {
    std::filesystem::remove(path);
    write_text(path, whole.substr(0, length));
    const size_t complete = (length >= first - 1) + (length >= whole.size() - 1);
    MetricsFile file(path);
    EXPECT_EQ(file.attempt(), static_cast<int64_t>(complete + 1)) << length;
    EXPECT_EQ(lines_of(path).size(), complete) << length;
    file.append(at(3));
    const auto lines = lines_of(path);
    ASSERT_EQ(lines.size(), complete + 1) << length;
    EXPECT_EQ(lines.back()["step"], 3);
  }
}

TEST(Metrics, ForeignFile) {
  TempFolder folder;
  write_text(folder / "x", "a table\nof something\n");
  expect_error(Exit::data, {"the last line of " + (folder / "x"), "move the file away"},
               [&] { MetricsFile file(folder / "x"); });
  expect_error(Exit::config, {"cannot write " + (folder / "no/x"), "No such file"},
               [&] { MetricsFile file(folder / "no/x"); });
}

}  // namespace
}  // namespace lockstep
