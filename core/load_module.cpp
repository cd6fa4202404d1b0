// Looking for a module beside the program, and opening it. Read next: cuda/open.cpp.
#include "core/load_module.h"

#include <dlfcn.h>

#include <filesystem>

#include "core/error.h"

namespace lockstep {

void* load_module(const std::string& name, const std::string& built, std::string& why) {
  std::error_code unknown;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", unknown);
  std::filesystem::path path = program.parent_path() / name;
  if (!std::filesystem::exists(path)) path = built;
  if (path.empty()) return nullptr;
  void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!module) why = dlerror();
  return module;
}

void* module_entry(void* module, const char* name) {
  void* found = dlsym(module, name);
  check(found != nullptr, "[module] no entry {}: {}", name, dlerror());
  return found;
}

}  // namespace lockstep
