#!/bin/bash
# Compiles all programs with compilers newer than this machine's, each in a fresh root of the Debian or Ubuntu release that
# has it, with WERROR=1. Users have these compilers before this project does.
#   test-compilers.sh WORK_DIR [SUITE[:COMPILER]]...      as root; default: testing:gcc, the newest gcc that Debian has as its
#                                                        default. COMPILER: gcc (the suite's own), gcc-13, clang, ...
# Called by `make test-compilers` and by .ci/run. Needs debootstrap and the network of apt's own mirror. The last commit is compiled.
set -euo pipefail
work=${1:?usage: test-compilers.sh WORK_DIR [SUITE[:COMPILER]]...}
shift
[ $# -gt 0 ] || set -- testing:gcc
here=$(cd "$(dirname "$0")/../.." && pwd)
. "$here/tools/package/root.sh"
trap unmount_roots EXIT

compiles() { # ROOT COMPILER
    local root=$1 compiler=$2
    local log=$root-$compiler.log
    inside "$root" "$compiler" --version | head -n 1
    inside "$root" sh -c "cd /helm && make -s -k -j$(nproc) NVCC= WERROR=1 CC=$compiler BUILD=/tmp/build-$compiler programs lib" \
        >"$log" 2>&1 && return 0
    grep -E 'error|warning' "$log" | head -n 40
    return 1
}

for each in "$@"; do
    suite=${each%%:*} compiler=gcc
    [ "$each" = "$suite" ] || compiler=${each#*:}
    root=$work/compile-$suite
    began=$SECONDS
    if [[ " ${roots[*]} " != *" $root "* ]]; then
        fresh_root "$root"
        git clone -q "$here" "$root/helm"
        inside "$root" sh -c 'apt-get install -y -qq --no-install-recommends make && cd /helm && make -s setup' \
            >"$work/compile-$suite.log" 2>&1
    fi
    [ "$compiler" = gcc ] || inside "$root" apt-get install -y -qq --no-install-recommends "$compiler" >>"$work/compile-$suite.log" 2>&1
    check "$suite: programs compile with $compiler without a warning" compiles "$root" "$compiler"
    echo "  ($((SECONDS - began)) s)"
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
