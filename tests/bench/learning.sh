#!/bin/bash
# What codecs do to learning: the quickstart's training with 2 ranks, the same steps and seed, once per
# codec with error feedback and without, behind AdamW; those of the fewest bytes behind onebit_adam as well,
# whose first 30 % of the steps travel uncompressed. Markdown on stdout, progress on stderr. Times do not count here,
# so the machine need not be quiet. The quickstart's token shards must be there.
#   tests/bench/learning.sh [--seeds "1337 1 2"] [--steps N=450] > FILE
set -euo pipefail
call="$0 $*"
seeds=1337 steps=450
# shellcheck source=tests/bench/common.sh
source "$(dirname "$0")/common.sh"
while [ $# -gt 0 ]; do
  case $1 in
    --seeds) seeds=${2:-}; for seed in $seeds; do positive "$seed" "$1"; done ;;
    --steps) steps=${2:-}; positive "$steps" "$1" ;;
    *) usage >&2; exit 64 ;;
  esac
  shift 2
done
need_trainer
ls "$root"/runs/quickstart/data/tokens/val_*.bin > /dev/null ||
  { echo "learning.sh: no token shards; run examples/quickstart.sh first" >&2; exit 64; }

runs=$(mktemp -d)
trap 'rm -rf "$runs" "$results"' EXIT
cd "$root"
train() { # SEED CODEC ERROR_FEEDBACK OPTIMIZER
  local run=$runs/$1-$2-$3-$4 warmup=0
  [ "$4" = adamw ] || warmup=$((steps * 3 / 10))
  mpirun -q --oversubscribe --bind-to none -np 2 "$trainer" --config configs/quickstart.json \
    --set run_dir="$run" --set train.seed="$1" --set train.steps="$steps" --set train.sample_tokens=1 \
    --set checkpoint.every=0 --set dist.compression.codec="$2" \
    --set dist.compression.error_feedback="$3" --set optim.name="$4" \
    --set dist.compression.warmup_steps="$warmup" > "$runs/log" 2>&1 || { cat "$runs/log" >&2; exit 1; }
  report run_of "$results" "$run" seed="$1" codec="$2" error_feedback="$3" optimizer="$4"
  rm -rf "$run"
}

echo "## Learning with compressed gradients"
report machine
echo "- command: \`$call\`"
echo
for seed in $seeds; do
  train "$seed" none true adamw
  for codec in bf16 int8 topk sign; do
    for error_feedback in true false; do train "$seed" $codec $error_feedback adamw; done
  done
  for codec in topk sign; do
    for error_feedback in true false; do train "$seed" $codec $error_feedback onebit_adam; done
  done
done
report learning "$results"
