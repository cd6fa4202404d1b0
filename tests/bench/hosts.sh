#!/bin/bash
# How much of communication hides behind computing: bench-small on 2 pretend hosts (tests/netlab) with one
# rank each, over links at which communicating takes 0.5, 1, 2 and 4 times as long as computing; PyTorch's
# DDP over gloo on the same links in the same run; every codec on the slowest. Markdown on stdout, progress
# on stderr. Needs root.
#   tests/bench/hosts.sh [--quick] [--rounds K=3] [--steps N=8] [--pytorch-steps N=4] > FILE
# --quick: one round of 3 steps, in about 8 minutes.
set -euo pipefail
call="$0 $*"
rounds=3 steps=8 apart=4 pytorch_steps=4
# shellcheck source=tests/bench/common.sh
source "$(dirname "$0")/common.sh"
if [ "${1:-}" = --quick ]; then rounds=1 steps=3 apart=2 pytorch_steps=2; shift; fi
read_options "rounds steps pytorch_steps" "$@"
need_trainer
need_pytorch
need_netlab

on_hosts() { # MBIT: what runs a program on the two hosts
  launch=("$root/tests/netlab/netlab" --hosts 2 --ranks 1 --mbit "$1" --)
}
run_lockstep() { # ROUND PRECISION RATIO MBIT CODEC MORE...
  on_hosts "$4"
  local codec=()
  [ "$5" = none ] || codec=(--set dist.compression.codec="$5")
  report run "$results" who=lockstep round="$1" precision="$2" ratio="$3" mbit="$4" codec="$5" -- \
    "${launch[@]}" "$trainer" bench step --config "$root/configs/bench-small.json" --set train.threads=1 \
    --set train.precision="$2" --warmup 1 --steps "$steps" --apart "$apart" "${codec[@]}" "${@:6}"
}
run_pytorch() { # ROUND PRECISION RATIO MBIT; gloo cannot sum bf16 gradients, autocast has fp32 ones
  local mode=fp32
  [ "$2" = fp32 ] || mode=autocast
  on_hosts "$4"
  report run "$results" who=pytorch round="$1" precision="$2" ratio="$3" mbit="$4" -- \
    "${launch[@]}" env OPENBLAS_CORETYPE="$(best_core)" GLOO_SOCKET_IFNAME=eth0 MASTER_ADDR=10.99.0.1 \
    MASTER_PORT=29500 /usr/bin/python3 "$here/pytorch_ddp.py" --ranks 2 --precision "$mode" --warmup 1 \
    --steps "$pytorch_steps"
}

echo "## Overlap between hosts"
report machine
echo "- command: \`$call\`"
echo
for precision in fp32 bf16; do
  run_lockstep 0 "$precision" 0 0 none
  run_pytorch 0 "$precision" 0 0
done
for round in $(seq "$rounds"); do
  for precision in fp32 bf16; do
    for ratio in 0.5 1 2; do
      mbit=$(report rate "$results" "$precision" "$ratio")
      run_lockstep "$round" "$precision" "$ratio" "$mbit" none
      run_pytorch "$round" "$precision" "$ratio" "$mbit"
    done
  done
  mbit=$(report rate "$results" fp32 4)
  run_lockstep "$round" fp32 4 "$mbit" none
  link=$(report link "$results")
  run_pytorch "$round" fp32 4 "$mbit"
  for codec in bf16 int8 topk rows sign; do
    run_lockstep "$round" fp32 4 "$mbit" "$codec" --link-mbit "$link"
  done
done
report hosts "$results"
