#!/bin/bash
# What sharding costs on one host: bench-small fp32 with 2 ranks, one thread on one core each, in the
# ZeRO stages 0, 1, 2, 3 by turns. Markdown on stdout, progress on stderr.
#   tests/bench/stages.sh [--rounds K=15] [--steps N=5] [--stages "0 1 3"] > FILE
set -euo pipefail
call="$0 $*"
rounds=15 steps=5 stages="0 1 2 3"
# shellcheck source=tests/bench/common.sh
source "$(dirname "$0")/common.sh"
read_options "rounds steps stages:text" "$@"
[[ $stages =~ ^0(\ [1-3])+$ ]] || { usage >&2; exit 64; }
need_trainer

echo "## Sharding"
report machine
echo "- command: \`$call\`"
echo
for round in $(seq "$rounds"); do
  # Every other round backwards, so that no stage always comes when the machine is warmest.
  if ((round % 2)); then order=$stages; else order=$(tr ' ' '\n' <<< "$stages" | tac); fi
  for stage in $order; do
    report run "$results" round="$round" stage="$stage" -- \
      mpirun -q --map-by core --bind-to core -np 2 "$trainer" bench step \
      --config "$root/configs/bench-small.json" --set train.threads=1 --set dist.zero_stage="$stage" \
      --warmup 1 --steps "$steps"
  done
done
report stages "$results"
