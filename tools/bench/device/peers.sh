#!/bin/bash
# Cells of `cells.py --set hybrids` compared with llama.cpp within SECONDS (570), from an unpacked bundle with a peer (go.sh). One
# ceiling of 35B-A3B fits a call of ten minutes with its model, both ceilings of 27B another. Tables go to standard output and
# $OUT/LOADS.md as far as they came, samples and plans to $OUT/LOADS.json, second turns to $OUT/second.txt. Exit status: that of cells.py.
#
#   tools/bench/device/peers.sh [--seconds N] [--second] [--alone] LOAD[,LOAD...] [options of cells.py]
#
# LOAD: 35b-ud-8GiB, 35b-ud-4GiB, 35b-ud-12GiB, 35b-ud-all, 27b-q4-12GiB, 27b-q4-8GiB, 27b-ud-8GiB, ... --second: first the second
# turn of a chat on 8 layers of 35B-A3B, all in VRAM. --alone: without llama.cpp.
set -u
began=$SECONDS limit=570 second=0 llama=(--llama peer/llama_bench)
while [[ ${1:-} == --* ]]; do
    case $1 in
    --seconds) limit=$2; shift ;;
    --second) second=1 ;;
    --alone) llama=() ;;
    *) break ;;
    esac
    shift
done
[ $# -ge 1 ] || { sed -n '2,9p' "$0" >&2; exit 2; }
loads=$1
shift
OUT=${OUT:-out} models=/dev/shm/helm-models
mkdir -p "$OUT" $models
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
if [ $second = 1 ]; then
    tools/bench/make_gguf.py --size 35b-a3b --type Q4_K_M --layers 8 --out $models/second.gguf &&
        timeout 150 tests/process/second_turn.py $models/second.gguf --turns 64,512 --rounds 3 --device cuda 2>&1 | tee "$OUT/second.txt"
    rm -f $models/second.gguf
fi
cells=$(mktemp -d)
timeout -s TERM -k 15 $((limit - (SECONDS - began) - 15)) tools/bench/cells.py --bin build/bin --out "$cells" --set hybrids --only "$loads" \
    --rounds 1 --refresh --models $models ${llama[@]+"${llama[@]}"} "$@" 2> >(tee "$OUT/progress.txt" >&2)
status=$?
for kind in md json; do cp "$cells/result.$kind" "$OUT/${loads//,/_}.$kind"; done
[ ! -f "$cells/profile.json" ] || cp "$cells/profile.json" "$OUT/"
rm -rf "$models"
echo "$((SECONDS - began)) s, exit $status"
exit $status
