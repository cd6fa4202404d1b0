#!/bin/bash
# Installs the Debian packages that are missing, from those named as arguments (default: what building
# and testing need). Nothing is done if all are there. Used by quickstart.sh and tests/run.sh.
set -euo pipefail
packages=("$@")
[ $# -gt 0 ] || packages=(g++ cmake ninja-build ccache pkg-config libopenmpi-dev openmpi-bin libdnnl-dev
  nlohmann-json3-dev libspdlog-dev libcli11-dev libsentencepiece-dev libxxhash-dev libgtest-dev)

missing=()
for p in "${packages[@]}"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2> /dev/null)" = installed ] || missing+=("$p")
done
[ ${#missing[@]} -gt 0 ] || exit 0

echo "installing: ${missing[*]}"
sudo=
if [ "$(id -u)" != 0 ]; then
  sudo=$(command -v sudo) || { echo "missing packages: ${missing[*]}; as root: apt-get install ${missing[*]}" >&2; exit 69; }
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
if ! { $sudo apt-get update && $sudo apt-get install -y --no-install-recommends "${missing[@]}"; } > "$log" 2>&1; then
  tail -n 3 "$log" >&2
  echo "missing packages: ${missing[*]}; they could not be installed (no network?): apt-get install ${missing[*]}" >&2
  exit 69
fi
