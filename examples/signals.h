// Signals that ask for an orderly end: USR1 (what mpirun forwards to its ranks), TERM, INT, and HUP
// of a terminal that is closed. The handler only notes them; the trainer asks at the end of each
// step. Read next: trainer.cpp.
#pragma once

namespace lockstep {

// Catches them from now on. A second INT, TERM or HUP ends the process at once, as usual. From now
// on, too, nobody need read what the process prints: a closed pipe ends it no more.
void catch_stop_signals();

// The number of the signal that came, or 0.
int stop_signal();

const char* signal_name(int number);

}  // namespace lockstep
