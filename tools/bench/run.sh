#!/bin/bash
# `make bench`: achieved speed, the limit measured beside it, and their ratio, for this machine. Called by the Makefile
# with the folder of the programs.
#   run.sh BIN_DIR [SIZE...]      SIZE: model shapes of helm-mkmodel to run besides the demo model (default 0.6b)
# Random models of those shapes are made in HELM_BENCH_DIR (default /dev/shm/helm-bench) and removed afterwards unless
# HELM_BENCH_KEEP is set. Results of a noisy machine are noise: run it on a quiet one.
set -euo pipefail
bin=${1:?usage: run.sh BIN_DIR [SIZE...]}
shift
[ $# -gt 0 ] || set -- 0.6b
here=$(cd "$(dirname "$0")/../.." && pwd)
models=${HELM_BENCH_DIR:-/dev/shm/helm-bench}
threads=${HELM_BENCH_THREADS:-}
mkdir -p "$models"
[ -n "${HELM_BENCH_KEEP:-}" ] || trap 'rm -rf "$models"' EXIT

echo "machine: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) CPUs, $(uname -sr)"
echo "date: $(date -u +%F), helm $("$bin/helm-cli" --version | awk '{print $NF}'), commit $(git -C "$here" rev-parse --short HEAD 2>/dev/null || echo none)"
echo "load before: $(cut -d' ' -f1-3 /proc/loadavg)"
echo
echo "== kernels beside the limits measured in the same run"
"$bin/helm-bench-kernels" ${threads:+--threads "$threads"} ${HELM_BENCH_QUICK:+--quick}
for size in "$@"; do
    model=$models/$size
    [ -f "$model/config.json" ] || "$bin/helm-mkmodel" --arch qwen3 --size "$size" --dtype bf16 --seed 1 --out "$model"
    for prompt in 128 512; do
        echo
        echo "== Qwen3-$size shape, bf16, prompt $prompt"
        "$bin/helm-bench-decode" --model "$model" --prompt "$prompt" ${threads:+--threads "$threads"}
    done
    echo
    echo "== Qwen3-$size shape, bf16, prompt 128, idle and beside one busy process a core"
    "$bin/helm-bench-decode" --model "$model" --prompt 128 --busy ${threads:+--threads "$threads"}
done
echo
echo "== demo model (7.3M parameters, bf16)"
"$bin/helm-bench-decode" --model "$here/tools/models/demo" --prompt 128 --tokens 256 --busy ${threads:+--threads "$threads"}
