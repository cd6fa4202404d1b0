// Does a person watch what this process prints? Under mpirun stdout is a pseudo-terminal whatever
// mpirun's own stdout is, so mpirun's is what counts. Read next: main.cpp.
#pragma once

#include <string>

namespace lockstep {

// The terminal that shows this process's stdout, as a path; empty if a file or a pipe takes it.
std::string watching_terminal();

// Characters per line of a terminal; 80 where it does not say.
int terminal_columns(const std::string& terminal);

}  // namespace lockstep
