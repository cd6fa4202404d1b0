// Facts from the compiler (macros), the build (commit.h, flags) and /proc.
#include "examples/build_info.h"

#include <array>
#include <fstream>
#include <sstream>

#include "core/error.h"
#include "examples/commit.h"
#include "examples/output_file.h"

namespace lockstep {

namespace {

// "key : value" of the first processor in /proc/cpuinfo; empty if there is none.
std::string cpu_field(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key)) {
      const size_t colon = line.find(": ");
      return colon == std::string::npos ? "" : line.substr(colon + 2);
    }
  return "";
}

}  // namespace

std::string build_info() {
  const FileSum program = sum_of_file("/proc/self/exe");
  return fmt::format("commit {}, compiler {}, flags {}, program {:016x}", LOCKSTEP_COMMIT,
                     __VERSION__, LOCKSTEP_FLAGS, program.xxh3);
}

std::string cpu_compiled_for() {
  std::string names;
#ifdef __AVX2__
  names += "avx2 ";
#endif
#ifdef __FMA__
  names += "fma ";
#endif
#ifdef __AVX512F__
  names += "avx512f ";
#endif
#ifdef __AVX512BF16__
  names += "avx512_bf16 ";
#endif
#ifdef __AMX_BF16__
  names += "amx_bf16 ";
#endif
#ifdef __ARM_NEON
  names += "neon ";
#endif
#ifdef __ARM_FEATURE_SVE
  names += "sve ";
#endif
  if (names.empty()) return "the oldest processors";
  names.pop_back();
  return names;
}

std::string cpu_present() {
  constexpr std::array<std::string_view, 7> telling = {
      "avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve"};
  const std::string name = cpu_field("model name");
  std::istringstream flags(cpu_field(name.empty() ? "Features" : "flags"));
  std::string found;
  for (std::string flag; flags >> flag;)
    for (std::string_view t : telling)
      if (flag == t) found += " " + flag;
  return (name.empty() ? "unknown processor" : name) + "," + found;
}

}  // namespace lockstep
