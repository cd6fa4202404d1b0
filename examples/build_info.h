// What program this is and what processor it runs on, for the log header and for comparing ranks.
// Read next: run_log.h.
#pragma once

#include <string>

namespace lockstep {

// One line, equal on all ranks that run the same program: commit ("-dirty" with changes), compiler,
// flags, and the hash of the executable itself.
std::string build_info();

// Instruction sets that Lockstep's own loops were compiled to use: "avx2 fma avx512f ...".
std::string cpu_compiled_for();

// The processor here: its name, and those of its instruction sets that decide about speed and bits.
std::string cpu_present();

}  // namespace lockstep
