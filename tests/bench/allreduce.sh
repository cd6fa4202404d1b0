#!/bin/bash
# All-reduce of 25 MB and 100 MB between 2 ranks of this host, Lockstep's beside MPI_Allreduce in place
# and with two buffers, in K launches each. Markdown on stdout, progress on stderr.
#   tests/bench/allreduce.sh [--repeat K=5] [--iters N=20] > FILE
set -euo pipefail
call="$0 $*"
repeat=5 iters=20
# shellcheck source=tests/bench/common.sh
source "$(dirname "$0")/common.sh"
read_options "repeat iters" "$@"
need_trainer

echo "## All-reduce within a host"
report machine
echo "- command: \`$call\`"
echo
for round in $(seq "$repeat"); do
  for buffers in 1 2; do
    with=()
    [ "$buffers" = 1 ] || with=(--mpi-out-of-place)
    report run "$results" round="$round" buffers="$buffers" -- mpirun -q --bind-to none -np 2 "$trainer" \
      bench comm -b 25M -e 100M -f 4 -n "$iters" "${with[@]}"
  done
done
report allreduce "$results"
