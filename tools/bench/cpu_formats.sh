#!/bin/bash
# Block formats on this machine's CPU: each format's kernels, exact and int8, of one token on one core and on all, beside the read
# bandwidth of the same run; then decode and prefill of Qwen3 shapes in Q4_K_M as a client sees them.
#   cpu_formats.sh BIN_DIR [SIZE...]      SIZE: of make_gguf.py: 0.6b 4b 8b ... (default 4b 8b)
# Files are made in HELM_BENCH_DIR (default /dev/shm) and removed afterwards unless HELM_BENCH_KEEP is set; a SIZE.gguf that
# is there already is used and stays. HELM_BENCH_PYTHON: which python3 runs make_gguf.py. Results of a
# noisy machine are noise: run it on a quiet one.
set -euo pipefail
bin=${1:?usage: cpu_formats.sh BIN_DIR [SIZE...]}
shift
[ $# -gt 0 ] || set -- 4b 8b
here=$(cd "$(dirname "$0")/../.." && pwd)
models=${HELM_BENCH_DIR:-/dev/shm} made=()
mkdir -p "$models"
[ -n "${HELM_BENCH_KEEP:-}" ] || trap 'rm -f "${made[@]}"' EXIT

echo "machine: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) CPUs, $(uname -sr)"
echo "date: $(date -u +%F), commit $(git -C "$here" rev-parse --short HEAD 2>/dev/null || echo none)"
echo "load before: $(cut -d' ' -f1-3 /proc/loadavg)"
for threads in 1 ''; do
    echo
    echo "== ${threads:-all} threads: one token, 12288 x 4096, weights in GB/s, plain reads beside them; 128 tokens, GFLOP/s"
    for format in q4_k q6_k q8_0 q5_k q4_0 iq4_xs iq4_nl mxfp4 q3_k q2_k q5_0 q5_1 q4_1 bf16; do
        "$bin/helm-bench-kernels" --quick --format $format ${threads:+--threads $threads} 2>/dev/null |
            grep '^gemv .* 12288 x 4096 \|^gemm .* 128  ' || echo "$format: none"
    done
done
for size in "$@"; do
    model=$models/$size.gguf
    if [ ! -f "$model" ]; then
        made+=("$model")
        "${HELM_BENCH_PYTHON:-python3}" "$here/tools/bench/make_gguf.py" --size "$size" --type Q4_K_M --out "$model"
    fi
    echo
    echo "== Qwen3-$size shape, Q4_K_M, CPU"
    "$bin/helm-bench" --model "$model" --device cpu --prompt 128,512 --output 64 --requests 3 --rounds 2 -- --ctx 1024
done
echo
echo "load after: $(cut -d' ' -f1-3 /proc/loadavg)"
