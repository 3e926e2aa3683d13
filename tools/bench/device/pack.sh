#!/bin/bash
# Packs what the scripts of this folder run on a bare machine with a GPU (Ubuntu 24.04, CUDA's libraries, OpenBLAS, no compiler needed):
#
#   [TESTS="PROGRAM ..."] [DROP="MODEL ..." [REST=DIR]] [NOPEER=1] [PEER=DIR] tools/bench/device/pack.sh BUILD [OUT]
#
# BUILD: the build folder of `make CUDA_ARCH=90 ...` with programs, helm-test-gpu-* and release/pyproto; all else is this tree's. TESTS:
# further programs, by their paths in BUILD. DROP: golden models that are left out (tests/data/golden/MODEL; `all`: all of them), or
# paths in the tree (tools/models/demo). REST: these go there, for a second call to the same machine. PEER: the folder of llama_bench,
# occupy_vram and llama.cpp's libraries (docs/benchmarking.md). OUT (.carry) gets archives and go.sh, at most LIMIT MiB (62) in all, as
# does REST; archives of programs and of the peer stay if nothing in them is newer. There:
#   . .carry/go.sh && tools/bench/device/checks.sh
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,12p' "$0" >&2; exit 2; }
build=$(cd "$1" && pwd) out=${2:-.carry} here=$(cd "$(dirname "$0")" && pwd)
tree=$(cd "$here/../../.." && pwd) limit=${LIMIT:-62}
mkdir -p "$out" && out=$(cd "$out" && pwd)
rest=${REST:-}
[ -z "$rest" ] || { mkdir -p "$rest" && rest=$(cd "$rest" && pwd); }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# archive NAME DIR TO: what lies in DIR. One dictionary over all of it, since programs share their kernels.
archive() {
    tar -C "$2" --owner=0 --group=0 -c . | xz -T1 --lzma2=preset=${PRESET:-1},dict=192MiB,nice=273 >"$work/$1.txz"
    mv "$work/$1.txz" "$3/"
}
# fits DIR: says its sizes
fits() {
    local kib
    kib=$(cat "$1"/* | wc -c | awk '{ print int($1 / 1024) }')
    du -k "$1"/*
    echo "$1: $kib KiB of $((limit * 1024))"
    [ "$kib" -le $((limit * 1024)) ] || { echo "pack.sh: $1: more than $limit MiB: DROP some models" >&2; return 1; }
}
# stale NAME DIR: something in DIR is newer than OUT's archive of it, or there is none
stale() { [ ! -e "$out/$1.txz" ] || [ -n "$(find -L "$2" -type f -newer "$out/$1.txz" -print -quit)" ]; }

if stale helm "$build/bin"; then
    mkdir "$work/helm"
    "$tree/tools/gpu-bundle.sh" --programs --dir "$build/bin" "$work/helm/build"
    archive helm "$work/helm" "$out" &
fi

top=$work/tree
mkdir -p "$top/build/release" "$top/build/python/google" "$top/tests/data" "$top/tools/bench"
cp -R "$build/release/pyproto" "$top/build/release/"
cp -R "$here/python/." "$top/build/python/"
cp -R "$(/usr/bin/python3 -c 'import google.protobuf as g; print(g.__path__[0])')" "$top/build/python/google/"
git -C "$tree" ls-files -co --exclude-standard tests/process tests/golden tests/gpu tests/data tools/bench tools/models/demo client/python |
    grep -vE '\.(c|cu|cuh|cpp|h)$|^tests/data/golden/' |
    tar -C "$tree" -c -T - | tar -C "$top" -x
cp -R "$tree/tests/data/golden" "$top/tests/data/"
for dropped in ${DROP:-}; do
    case $dropped in
    all) dropped=tests/data/golden ;;
    */*) ;;
    *) dropped=tests/data/golden/$dropped ;;
    esac
    mkdir -p "$work/rest/$(dirname "$dropped")" && mv "$top/$dropped" "$work/rest/$dropped"
done
for test in ${TESTS:-}; do
    mkdir -p "$top/build/$(dirname "$test")" && cp "$build/$test" "$top/build/$test" && strip "$top/build/$test"
done
find "$top" -name '*.so' -delete
find "$top" -depth -name __pycache__ -exec rm -r {} +
archive tree "$top" "$out" &
[ -z "$rest" ] || archive rest "$work/rest" "$rest" &

if [ "${NOPEER:-}" = 1 ]; then
    rm -f "$out/peer.txz"
elif stale peer "${PEER:?the folder of llama_bench, or NOPEER=1}"; then
    mkdir "$work/peer" && cp -RL "$PEER" "$work/peer/peer"
    archive peer "$work/peer" "$out" &
fi
wait
for folder in "$out" ${rest:+"$rest"}; do
    cp "$here/go.sh" "$folder/" && fits "$folder"
done
