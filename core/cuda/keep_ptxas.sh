#!/bin/bash
# Compiler launcher for nvcc: runs the command, and moves what `-Xptxas=-v` says of each kernel from the terminal to
# OBJECT.ptxas, for kernel_table.sh. Errors and warnings pass.
set -uo pipefail
object=
previous=
for argument in "$@"; do
  [[ $previous == -o ]] && object=$argument
  previous=$argument
done
report=$(mktemp)
trap 'rm -f "$report"' EXIT
"$@" 2> "$report"
status=$?
verbose='^ptxas info|^ +[0-9]+ bytes stack frame'
grep -vE "$verbose" "$report" >&2
if [[ $status == 0 && $object == *.o ]]; then
  grep -E "$verbose" "$report" > "$object.ptxas"
fi
exit $status
