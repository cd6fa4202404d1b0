#!/bin/bash
# Every source file is as clang-format leaves it, by the .clang-format beside it; 77 (skipped) without clang-format.
# To put a file right: clang-format -i FILE.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(clang-format --version 2> /dev/null) || { echo "skipped: clang-format is not installed"; exit 77; }
# Other versions break some lines otherwise; this is Debian 12's.
[[ $version =~ version\ 14\. ]] || { echo "skipped: $version; version 14 is right"; exit 77; }
find core nn optim dist data examples tests \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) \
  -print0 | xargs -0 -n 20 -P 2 clang-format --dry-run -Werror
