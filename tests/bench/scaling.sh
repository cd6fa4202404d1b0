#!/bin/bash
# Weak scaling on bench-small: 1 rank, 1 rank beside a stranger (the same program on the other core, which
# shares nothing with it but the machine) and 2 ranks by turns, one thread on one core each, fp32 and
# bf16. What the stranger costs no framework can win back. PyTorch's DDP over gloo in the same run.
# Markdown on stdout, progress on stderr.
#   tests/bench/scaling.sh [--pairs K=15] [--pytorch-pairs K=5] [--steps N=10] [--pytorch-steps N=5]
#     [--precisions "fp32 bf16"] > FILE
set -euo pipefail
call="$0 $*"
pairs=15 pytorch_pairs=5 steps=10 pytorch_steps=5 precisions="fp32 bf16"
# shellcheck source=tests/bench/common.sh
source "$(dirname "$0")/common.sh"
read_options "pairs pytorch_pairs:0 steps pytorch_steps precisions:text" "$@"
[[ $precisions =~ ^(fp32|bf16)(\ (fp32|bf16))?$ ]] || { usage >&2; exit 64; }
need_trainer
[ "$pytorch_pairs" = 0 ] || need_pytorch

run_lockstep() { # ROUND PRECISION RANKS, which may be 1+1: one beside a stranger
  local launch=(taskset -c 0) stranger=
  local bench=("$trainer" bench step --config "$root/configs/bench-small.json" --set train.threads=1
    --set train.precision="$2")
  [ "$3" != 2 ] || launch=(mpirun -q --map-by core --bind-to core -np 2)
  if [ "$3" = 1+1 ]; then
    taskset -c 1 "${bench[@]}" --steps 1000000 > /dev/null &
    stranger=$!
  fi
  report run "$results" who=lockstep round="$1" precision="$2" ranks="$3" -- "${launch[@]}" \
    "${bench[@]}" --steps "$steps"
  if [ -n "$stranger" ]; then
    kill -KILL "$stranger"
    wait "$stranger" 2> /dev/null || true  # the shell would tell of the kill
  fi
}
run_pytorch() { # ROUND PRECISION RANKS; gloo cannot sum bf16 gradients, autocast has fp32 ones
  local mode=fp32
  [ "$2" = fp32 ] || mode=autocast
  report run "$results" who=pytorch round="$1" precision="$2" ranks="$3" -- \
    env OPENBLAS_CORETYPE="$(best_core)" /usr/bin/python3 "$here/pytorch_ddp.py" --ranks "$3" \
    --precision "$mode" --warmup 1 --steps "$pytorch_steps"
}

echo "## Weak scaling"
report machine
echo "- command: \`$call\`"
echo
for round in $(seq "$((pairs > pytorch_pairs ? pairs : pytorch_pairs))"); do
  order=(1 1+1 2)
  ((round % 2)) || order=(2 1+1 1)
  for precision in $precisions; do
    if ((round <= pairs)); then
      for ranks in "${order[@]}"; do run_lockstep "$round" "$precision" "$ranks"; done
    fi
    if ((round <= pytorch_pairs)); then
      for ranks in "${order[@]/1+1/}"; do
        [ -z "$ranks" ] || run_pytorch "$round" "$precision" "$ranks"
      done
    fi
  done
done
report scaling "$results"
