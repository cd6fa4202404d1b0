#!/bin/bash
# The test command: installs what is missing, builds, runs the tests.
#   tests/run.sh             the quick tests (under 4 minutes on 2 cores once built)
#   tests/run.sh --all       also the soak tests: kill loops, large matrices, and builds of their own of core, optim
#                            and data under AddressSanitizer and UBSan, of dist under ThreadSanitizer
#   tests/run.sh --sanitizers   also everything else under them: much of an hour
#   tests/run.sh [--all] -R reducer   further arguments go to ctest
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
labels=(-L quick)
case ${1:-} in
  -h | --help) sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"; exit ;;
  --all) labels=(-LE sanitize); shift ;;
  --sanitizers) labels=(); shift ;;
esac
"$root/examples/install.sh"
"$root/examples/install.sh" clang-format || echo "going on without it: the format test will be skipped" >&2
echo "building $root/build (the first time about 10 minutes on 2 cores)"
"$root/examples/build.sh" "$root/build"
# mpirun refuses to run as root unless told twice; inside a container root is what there is.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
exec ctest --test-dir "$root/build" --output-on-failure -j 2 "${labels[@]}" "$@"
