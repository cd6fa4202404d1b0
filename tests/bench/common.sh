# shellcheck shell=bash
# Sourced by the scripts of this folder, not run: paths, the two programs, the results' folder.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
here=$root/tests/bench
trainer=${TRAINER:-$root/build/examples/trainer}
report() { python3 "$here/report.py" "$@"; }

# mpirun refuses root unless told twice; inside a container root is what there is.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# PyTorch sees no OPENBLAS_* variable but the one a script sets on purpose.
for variable in $(compgen -e OPENBLAS_); do unset "$variable"; done

usage() { # prints the first comment of the script
  sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"
}
positive() { # VALUE OPTION: an error unless it is a whole number above 0
  [[ $1 =~ ^[1-9][0-9]*$ ]] || { echo "$(basename "$0"): $2 '$1' is not a whole number above 0" >&2; exit 64; }
}
# --some-name VALUE sets the variable some_name. "name" takes whole numbers above 0, "name:0" 0 as well,
# "name:text" anything, which the script checks.
read_options() { # "NAMES" ARGUMENT...
  local names=" $1 " name
  shift
  while [ $# -gt 0 ]; do
    [ "$1" != --help ] || { usage; exit 0; }
    [[ $1 == --?* && $# -gt 1 ]] || { usage >&2; exit 64; }
    name=${1#--} name=${name//-/_}
    case $names in
      *" $name "*) positive "$2" "$1" ;;
      *" $name:0 "*) [ "$2" = 0 ] || positive "$2" "$1" ;;
      *" $name:text "*) ;;
      *) usage >&2; exit 64 ;;
    esac
    printf -v "$name" %s "$2"
    shift 2
  done
}
need_trainer() {
  [ -x "$trainer" ] || { echo "$(basename "$0"): no $trainer; build it: examples/build.sh build" >&2; exit 64; }
}
need_pytorch() { # Debian's PyTorch with a BLAS worth comparing with
  "$root/examples/install.sh" python3-torch libopenblas0-pthread >&2
}
need_netlab() { # several hosts on this machine
  "$root/tests/netlab/netlab" check >&2 || exit 77
}
# The core type that OpenBLAS should choose here if it does not know the processor.
best_core() { if grep -q avx512f /proc/cpuinfo; then echo SkylakeX; else echo Haswell; fi; }

results=$(mktemp)
trap 'rm -f "$results"' EXIT
