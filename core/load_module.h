// Code that only some machines can use, in shared libraries of its own. Read next: cuda/open.h.
#pragma once

#include <string>

namespace lockstep {

// Loads the library `name` from beside the program, else `built`, where it was built, and never
// unloads it. Null, with the reason in `why`, if that fails; `why` stays as it is if there is none
// beside the program and none was built (`built` is empty). It may use core and dist of the
// program, if that is linked by lockstep_opens_cuda (CMakeLists.txt).
void* load_module(const std::string& name, const std::string& built, std::string& why);

// An entry of it; error if there is none of that name.
void* module_entry(void* module, const char* name);

}  // namespace lockstep
