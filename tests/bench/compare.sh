#!/bin/bash
# Lockstep against PyTorch on the CPU: bench-small on all cores and GPT-2 124M on 2 threads, fp32 and
# bf16, in one run. Round 0 tries PyTorch's settings; the rounds after it alternate Lockstep and the
# settings that were best. Markdown on stdout, progress on stderr.
#   tests/bench/compare.sh [--rounds K=5] [--steps N=10] [--pytorch-steps N=5]
#     [--models "bench-small gpt2-124m"] > FILE
set -euo pipefail
call="$0 $*"
rounds=5 steps=10 pytorch_steps=5 models="bench-small gpt2-124m"
# shellcheck source=tests/bench/common.sh
source "$(dirname "$0")/common.sh"
read_options "rounds steps pytorch_steps models:text" "$@"
need_trainer
need_pytorch

ours=() torch=()
shapes() { # MODEL: arguments of both programs
  case $1 in
    bench-small)
      ours=(--config "$root/configs/bench-small.json")
      torch=(--batch 8 --seq-len 256 --layers 6 --heads 6 --width 384 --vocab 8192) ;;
    gpt2-124m)
      ours=(--config "$root/configs/gpt2-124m.json" --set train.seq_len=64 --set train.micro_batch=4
        --set train.recompute=none --set data.format=synthetic --set data.train= --set data.val=
        --set train.threads=2)
      torch=(--batch 4 --seq-len 64 --layers 12 --heads 12 --width 768 --vocab 50304) ;;
    *) echo "compare.sh: model '$1' is neither bench-small nor gpt2-124m" >&2; exit 64 ;;
  esac
}
run_lockstep() { # MODEL ROUND PRECISION
  report run "$results" who=lockstep model="$1" round="$2" precision="$3" -- \
    "$trainer" bench step "${ours[@]}" --set train.precision="$3" --steps "$steps"
}
run_pytorch() { # MODEL ROUND PRECISION MODE THREADS CORE
  local core=()
  [ "$6" = guessed ] || core=(OPENBLAS_CORETYPE="$(best_core)")
  report run "$results" who=pytorch model="$1" round="$2" precision="$3" mode="$4" threads="$5" core="$6" -- \
    env "${core[@]}" /usr/bin/python3 "$here/pytorch_gpt2.py" --precision "$4" --threads "$5" "${torch[@]}" \
    --warmup 1 --steps "$pytorch_steps"
}
run_pytorch_settings() { # MODEL ROUND PRECISION: those of the precision that were best in round 0
  local precision mode threads core
  while read -r precision mode threads core; do
    [ "$precision" != "$3" ] || run_pytorch "$1" "$2" "$precision" "$mode" "$threads" "$core" < /dev/null
  done < <(report settings "$results" "$1")
}

for model in $models; do shapes "$model"; done  # a wrong name is told before anything is measured
echo "## Against PyTorch"
report machine
echo "- command: \`$call\`"
echo
for model in $models; do
  shapes "$model"
  for threads in 1 2; do
    for core in guessed told; do run_pytorch "$model" 0 fp32 fp32 "$threads" "$core"; done
    for mode in bf16 autocast; do run_pytorch "$model" 0 bf16 "$mode" "$threads" guessed; done
  done
  for round in $(seq "$rounds"); do
    for precision in fp32 bf16; do
      if ((round % 2)); then
        run_lockstep "$model" "$round" "$precision"
        run_pytorch_settings "$model" "$round" "$precision"
      else
        run_pytorch_settings "$model" "$round" "$precision"
        run_lockstep "$model" "$round" "$precision"
      fi
    done
  done
done
report compare "$results"
