#!/bin/bash
# Configures and builds: build.sh FOLDER [cmake options]. Targets beside `all` in $TARGETS. Quiet unless it fails.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
folder=$1
shift
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cmake -G Ninja -S "$root" -B "$folder" "$@" > "$log" 2>&1 || { cat "$log" >&2; exit 70; }
# shellcheck disable=SC2086
ninja -C "$folder" ${TARGETS:-} > "$log" 2>&1 || { grep -vE '^\[[0-9]+/' "$log" | head -60 >&2; exit 70; }
