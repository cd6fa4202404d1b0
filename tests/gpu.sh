#!/bin/bash
# Everything that can be learned of one NVIDIA GPU in under 10 minutes, in one report. Needs a build with the CUDA
# module (examples/build.sh build).
#   tests/gpu.sh [--report FILE=gpu-report.md] [--build FOLDER=build]
# Each part has a time limit, all have 590 s, and each is reported whether it passed, failed, ran out of time, or why it
# was left out:
#   1. the tests of kernels and ops on the GPU (tests/gpu), but those whose StepScalars are the host's;
#   2. compute-sanitizer's memcheck, racecheck, synccheck and initcheck on small shapes of them;
#   3. the trainer on synthetic tokens: bench-small and gpt2-124m-cuda, 1 rank; bench-small again with NCCL, and with
#      2 ranks that share the GPU through the host and replay CUDA graphs;
#   4. `trainer bench step` of both, with MFU against a matrix product measured in the same process;
#   5. PyTorch's step of the same shapes, if PyTorch sees the GPU.
# Exit: 0 all that ran passed; 1 something failed; 64 wrong usage or no build; 78 no GPU, in one line.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
report=gpu-report.md build=$root/build
while [ $# -gt 0 ]; do
  case $1 in
    --report) report=${2:?} ;;
    --build) build=${2:?} ;;
    *) sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 64 ;;
  esac
  shift 2
done
trainer=$build/examples/trainer tests=$build/tests/gpu/gpu_test
for program in "$trainer" "$tests"; do
  [ -x "$program" ] || { echo "gpu.sh: no $program; build it: examples/build.sh $build" >&2; exit 64; }
done
if ! device=$("$tests" --describe 2>&1); then
  echo "gpu.sh: $device" >&2
  exit 78
fi

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0 SECONDS=0
say() { echo "$@" | tee -a "$report"; }
# part TITLE SECONDS COMMAND...: runs it, and keeps the end of what it said.
part() {
  local title=$1 limit=$2 left=$((590 - SECONDS)) status=0 start=$SECONDS verdict=passed
  shift 2
  [ "$left" -ge 10 ] || { left_out "$title" "no time was left"; return; }
  [ "$left" -ge "$limit" ] || limit=$left
  echo "== $title" >&2
  timeout --kill-after=10 "$limit" "$@" > "$scratch/out" 2>&1 || status=$?
  case $status in
    0) ;;
    124 | 137) verdict="out of time ($limit s)" ;;
    *) verdict="FAILED (exit $status)"; failures=$((failures + 1)) ;;
  esac
  say "### $title: $verdict, $((SECONDS - start)) s"
  { echo '```'; echo "\$ $*"; tail -n "${LINES_KEPT:-12}" "$scratch/out"; echo '```'; } >> "$report"
}
left_out() { say "### $1: left out, $2"; }

{
  echo "# Lockstep on a GPU"
  echo "- device: $device"
  echo "- date: $(date -u '+%Y-%m-%d %H:%M UTC'), host $(uname -n), commit $(git -C "$root" rev-parse --short HEAD 2>&1)"
  command -v nvidia-smi > /dev/null && nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit \
    --format=csv,noheader | sed 's/^/- nvidia-smi: /'
  command -v nvcc > /dev/null && nvcc --version | tail -1 | sed 's/^/- nvcc: /'
} > "$report"

say "## Tests"
LINES_KEPT=40 part "kernels and ops" 150 "$tests" --gtest_brief=1

say "## compute-sanitizer"
small='KernelsAttention.AccumulatesIntoTheGradient:*KernelsRows.Norms/*:*/attention*:*/mlp_gelu*'
for tool in memcheck racecheck synccheck initcheck; do
  if command -v compute-sanitizer > /dev/null; then
    part "$tool" 40 compute-sanitizer --tool $tool --error-exitcode 9 "$tests" --gtest_brief=1 --gtest_filter="$small"
  else
    left_out $tool "compute-sanitizer is not on the PATH"
  fi
done

say "## Trainer"
synthetic=(--set data.format=synthetic --set data.tokenizer=none --set data.train= --set data.val=)
short=(--set train.steps=20 --set train.eval_every=0 --set train.eval_batches=1 --set log.progress=plain --set log.every=5)
part "bench-small, 30 steps" 40 "$trainer" --config "$root/configs/bench-small.json" --set train.device=cuda \
  --set run_dir="$scratch/small" --set log.progress=plain
part "bench-small, NCCL, stage 3" 30 "$trainer" --config "$root/configs/bench-small.json" --set train.device=cuda \
  --set dist.backend=nccl --set dist.zero_stage=3 --set run_dir="$scratch/nccl" --set log.progress=plain
part "bench-small, 2 ranks on one GPU, stage 2, CUDA graphs" 30 "$trainer" --config "$root/configs/bench-small.json" \
  --set train.device=cuda --set dist.backend=local --set dist.local_ranks=2 --set dist.zero_stage=2 \
  --set train.cuda_graph=true --set run_dir="$scratch/shared" --set log.progress=plain
part "gpt2-124m-cuda, 20 steps" 60 "$trainer" --config "$root/configs/gpt2-124m-cuda.json" "${synthetic[@]}" \
  "${short[@]}" --set train.global_batch=0 --set train.micro_batch=16 --set run_dir="$scratch/gpt2"

say "## Speed, against a matrix product measured in the same process"
for precision in fp32 tf32 bf16; do
  LINES_KEPT=60 part "bench step, bench-small, $precision" 40 "$trainer" bench step \
    --config "$root/configs/bench-small.json" --set train.device=cuda --set train.precision=$precision
done
LINES_KEPT=60 part "bench step, bench-small, bf16, CUDA graphs" 40 "$trainer" bench step \
  --config "$root/configs/bench-small.json" --set train.device=cuda --set train.precision=bf16 --set train.cuda_graph=true
LINES_KEPT=60 part "bench step, gpt2-124m-cuda" 60 "$trainer" bench step --config "$root/configs/gpt2-124m-cuda.json" \
  "${synthetic[@]}" --set train.global_batch=0 --set train.micro_batch=16

say "## PyTorch beside it"
if python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2> /dev/null; then
  part "PyTorch, bench-small, bf16" 40 python3 "$root/tests/bench/pytorch_gpu.py"
  part "PyTorch, gpt2-124m, bf16" 60 python3 "$root/tests/bench/pytorch_gpu.py" --batch 16 --seq-len 1024 --layers 12 \
    --heads 12 --width 768 --vocab 50304
else
  left_out "PyTorch" "none here that sees a GPU"
fi
say "## $failures parts failed, $SECONDS s in all"
exit $((failures > 0))
