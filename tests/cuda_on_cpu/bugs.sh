#!/bin/bash
# bugs.sh COMPILER FOLDER: builds bugs.cpp plainly, with AddressSanitizer and UBSan, and with ThreadSanitizer in FOLDER, and
# sees that every planted bug is found by what should find it, and nothing is found in the kernels without.
set -euo pipefail
compiler=$1 folder=$2
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$folder"
flags=(-std=c++20 -g -O1 -Wall -Wextra -Wno-unknown-pragmas -isystem "$here/emulated")
"$compiler" "${flags[@]}" "$here"/{bugs,runtime,scheduler}.cpp -o "$folder/plain"
"$compiler" "${flags[@]}" -fsanitize=address,undefined -fno-sanitize-recover=all -DCUDA_ON_CPU_ASAN \
  "$here"/{bugs,runtime,scheduler}.cpp -o "$folder/address"
# The scheduler is not watched, only the kernels.
"$compiler" "${flags[@]}" -fno-tree-loop-distribute-patterns -DCUDA_ON_CPU_TSAN -c "$here/scheduler.cpp" \
  -o "$folder/scheduler.o"
"$compiler" "${flags[@]}" -fsanitize=thread "$here"/{bugs,runtime}.cpp "$folder/scheduler.o" -o "$folder/thread"

failures=0
# expect BUILD BUG TEXT [ORDER]: what is said contains TEXT; only "clean" ends with 0.
expect() {
  local build=$1 bug=$2 text=$3 order=${4:-forward} status=0 said
  said=$("$folder/$build" "$bug" "$order" 2>&1) || status=$?
  local wanted=0
  [[ $text == clean ]] || wanted=1
  if [[ $said != *"$text"* || $((status > 0)) != "$wanted" ]]; then
    echo "$build $bug $order: expected \"$text\", got (exit $status):"
    echo "$said" | head -20
    failures=$((failures + 1))
  fi
}

for order in forward reverse random; do
  for build in plain address thread; do expect $build none clean $order; done
  expect plain no_barrier_after_write "wrong value" $order
  expect thread no_barrier_after_write "data race" $order
  expect thread no_barrier_before_overwrite "data race" $order
  expect thread no_syncwarp "data race" $order
  expect thread no_syncwarp_before_load "data race" $order
  expect thread no_syncwarp_after_store "data race" $order
  expect plain factor_off_32_bytes "load_matrix_sync at line" $order
  expect thread two_blocks_one_element "data race" $order
  expect plain divergent_barrier "divergent __syncthreads" $order
  expect plain unset_shared "wrong value" $order
  expect plain outside_mask "the calling lane is not in its mask" $order
  expect plain exit_before_barrier "__syncthreads at line" $order
done
expect plain no_syncwarp "wrong value"
expect plain early_exit "its mask names ended lanes" random
expect address shared_overrun "heap-buffer-overflow"
expect address global_overrun "heap-buffer-overflow"
expect address misaligned "misaligned address"
exit $((failures > 0))
