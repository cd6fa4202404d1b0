// How much memory this process may still take before the kernel kills it. Linux promises more than
// it has, so a refusal has to be our own, while there is a run to save. Read next: allocator.cpp.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep {

// Bytes: the least that the machine (MemAvailable and free swap) and the control groups of this
// process leave, page cache counted as free. The largest size_t where nothing tells.
size_t free_memory();

// The same under another root than "/", for tests.
size_t free_memory(const std::string& root);

// Whether so much may be taken and something stays for what nobody counts: stacks, libraries'
// memory, the program's own pages. Ask before memory is used, and use it (touch its pages) before
// anybody asks again; two ranks that ask at the same moment may both hear yes.
bool fits_memory(size_t bytes);

}  // namespace lockstep
