#!/bin/bash
# kernel_table.sh FOLDER: a table of every kernel compiled below FOLDER, from the *.ptxas files that keep_ptxas.sh left
# there: registers, spilled bytes, static shared memory, and the warps that registers allow on a multiprocessor (of 64).
# Dynamic shared memory (attention.cu) limits further.
set -euo pipefail
printf '%-6s %9s %7s %7s %9s  %s\n' arch registers spills shared 'warps/SM' kernel
find "$1" -name '*.ptxas' -print0 | sort -z | xargs -0 cat | awk '
  /Compiling entry function/ { split($0, part, "\x27"); name = part[2]; arch = part[4] }
  /bytes stack frame/ { spills = $5 }
  /Used [0-9]+ registers/ {
    registers = shared = 0
    for (i = 1; i <= NF; ++i) {
      if ($i == "Used") registers = $(i + 1)
      if ($i ~ /^smem/) shared = $(i - 2)
    }
    warps = int(2048 / (int((registers + 7) / 8) * 8))
    printf "%-6s %9d %7d %7d %9d  %s\n", arch, registers, spills, shared, (warps > 64 ? 64 : warps), name
  }' | c++filt | sed -E 's/lockstep::cuda:://g; s/lockstep:://g; s/\(anonymous namespace\):://g; s/_GLOBAL__N__[0-9a-z_]+:://g' |
  sort -k1,1 -k6
