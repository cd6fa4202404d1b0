#!/bin/bash
# Builds with a sanitizer and runs tests under it: sanitize.sh address,undefined|thread BUILD_FOLDER [ctest arguments].
# Called by the tests named sanitize.*. $TARGETS: what to build, if not everything.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
kind=$1 folder=$2
shift 2
"$root/examples/build.sh" "$folder" -DLOCKSTEP_SANITIZE="$kind" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1"  # a third of the time that -O2 -g takes to build
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export LSAN_OPTIONS=suppressions=$root/tests/lsan.supp:print_suppressions=0
# An impossible allocation is refused by the system here too, and a test looks at how we say so.
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
# Code that was not compiled for the detector (Open MPI, PMIx, libevent) is not its business.
# A process that ends because a rank hangs ends with that rank's thread unjoined, by design.
TSAN_OPTIONS=suppressions=$root/tests/tsan.supp:halt_on_error=1:ignore_noninstrumented_modules=1
export TSAN_OPTIONS=$TSAN_OPTIONS:report_thread_leaks=0
ctest --test-dir "$folder" --output-on-failure -j 2 "$@"
