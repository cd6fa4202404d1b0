# Run at every build: writes OUT, a header with the commit of SOURCE, and only when that has changed.
set(ENV{GIT_OPTIONAL_LOCKS} 0) # never disturb a git command that runs beside the build
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
if(failed)
  set(commit "unknown")
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#define LOCKSTEP_COMMIT \"${commit}\"\n")
