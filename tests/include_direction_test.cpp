// The arrows between folders, proved by reading every #include: core <- nn, optim, data;
// core, optim <- dist; examples knows all and nothing includes it. Also that includes are written
// from the root, and that headers which take seconds to compile stay out of our headers.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>

namespace {

namespace fs = std::filesystem;

// What the files of a folder may include, besides the folder itself.
const std::map<std::string, std::set<std::string>> arrows{
    {"core", {}},
    {"nn", {"core"}},
    {"optim", {"core"}},
    {"data", {"core"}},
    {"dist", {"core", "optim"}},
    {"examples", {"core", "nn", "optim", "data", "dist"}},
    {"tests", {"core", "nn", "optim", "data", "dist", "examples"}},
};

const std::vector<std::string> heavy{"nlohmann/", "spdlog/",  "CLI/",          "mpi.h",
                                     "oneapi/",   "dnnl.hpp", "sentencepiece", "gtest/"};

// What is wrong with `file` (a path from the root) including `target`; empty if nothing is.
std::string fault(const fs::path& file, const std::string& target, bool quoted) {
  const std::string from = file.begin()->string();
  if (!quoted) {
    const bool header = file.extension() == ".h" || file.extension() == ".cuh";
    const bool is_heavy =
        std::ranges::any_of(heavy, [&](const std::string& h) { return target.starts_with(h); });
    return header && is_heavy && from != "tests" ? "a heavy header in a header" : "";
  }
  const std::string to = fs::path(target).begin()->string();
  if (!arrows.contains(to)) return "not written from the root";
  if (to != from && !arrows.at(from).contains(to)) return from + " must not know " + to;
  return "";
}

template <class Visit>
void each_include(const fs::path& path, Visit&& visit) {
  static const std::regex include(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"].*)");
  std::ifstream in(path);
  std::smatch match;
  for (std::string line; std::getline(in, line);)
    if (std::regex_match(line, match, include)) visit(match[2].str(), match[1].str() == "\"");
}

TEST(IncludeDirection, ArrowsPointOneWay) {
  const fs::path root = LOCKSTEP_SOURCE_DIR;
  int files = 0;
  for (const auto& [folder, allowed] : arrows) {
    ASSERT_TRUE(fs::is_directory(root / folder)) << folder;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension();
      if (!std::set<std::string>{".h", ".cpp", ".cu", ".cuh"}.contains(extension)) continue;
      ++files;
      const fs::path file = fs::relative(entry.path(), root);
      each_include(entry.path(), [&](const std::string& target, bool quoted) {
        EXPECT_EQ(fault(file, target, quoted), "") << file << " includes " << target;
      });
    }
  }
  EXPECT_GT(files, 50);
}

TEST(IncludeDirection, FaultsAreSeen) {
  EXPECT_EQ(fault("core/ops/linear.cpp", "nn/gpt.h", true), "core must not know nn");
  EXPECT_EQ(fault("dist/reducer.cpp", "nn/module.h", true), "dist must not know nn");
  EXPECT_EQ(fault("data/loader.cpp", "optim/sgd.h", true), "data must not know optim");
  EXPECT_EQ(fault("dist/reducer.cpp", "examples/train.h", true), "dist must not know examples");
  EXPECT_EQ(fault("core/tensor.cpp", "tensor.h", true), "not written from the root");
  EXPECT_EQ(fault("dist/mpi.h", "mpi.h", false), "a heavy header in a header");
  EXPECT_EQ(fault("core/cpu/gemm.h", "oneapi/dnnl/dnnl.hpp", false), "a heavy header in a header");
  EXPECT_EQ(fault("dist/mpi.cpp", "mpi.h", false), "");
  EXPECT_EQ(fault("dist/reducer.cpp", "optim/sgd.h", true), "");
  EXPECT_EQ(fault("examples/train.cpp", "dist/reducer.h", true), "");
}

}  // namespace
