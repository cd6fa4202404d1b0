#!/bin/bash
# From a fresh clone to a trained model: installs what is missing, builds, makes token shards from a book,
# trains a small GPT with two ranks, and lets it write. Run again, it does only what is not done yet.
#   examples/quickstart.sh             the King James Bible, from Debian's package bible-kjv
#   examples/quickstart.sh TEXT_FILE   any text, in a run folder of its own
set -euo pipefail
text=
run=runs/quickstart
settings=()
if [ $# -gt 0 ]; then
  text=$(realpath -e "$1") || exit 64
  run=runs/quickstart-$(basename "${text%.*}")
  settings=(--set run_dir="$run" --set data.train="$run/data/tokens/train_*.bin"
    --set data.val="$run/data/tokens/val_*.bin")
fi
cd "$(dirname "$0")/.."
say() { printf '\n== %s\n' "$*"; }

say "1/5 packages"
examples/install.sh
[ -n "$text" ] || examples/install.sh bible-kjv

say "2/5 build (the first one takes 3 to 4 minutes on 2 cores)"
TARGETS=trainer examples/build.sh build
trainer=build/examples/trainer

say "3/5 token shards"
mkdir -p "$run/data"
if [ -z "$text" ]; then
  text=$run/data/bible.txt
  # Each line is "Ge1:1 In the beginning ...": the verse number goes.
  [ -s $text ] || { bible -f 'gen1:1-rev22:21' | sed 's/^[^ ]* //' > $text.part && mv $text.part $text; }
fi
$trainer data --text "$text" --out "$run/data/tokens"

say "4/5 train"
# mpirun refuses to run as root unless told twice; inside a container root is what there is.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mpirun -q --oversubscribe --bind-to none -np 2 $trainer --config configs/quickstart.json "${settings[@]}"

say "5/5 let it write"
$trainer generate --run "$run" --prompt 'And God said' --tokens 300

say "where to look next"
cat << END
  $run/log.txt          what was run, on what, step by step
  $run/metrics.jsonl    one JSON object per step: loss, tokens/s, where the time went
  $run/checkpoints/     complete checkpoints; the command of step 4 resumes from the newest
  $trainer --help-config             every setting
  $trainer bench step --config configs/bench-small.json   MFU and the time split on this machine
  README.md             the reading order of the code
END
