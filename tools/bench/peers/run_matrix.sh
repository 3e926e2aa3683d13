#!/bin/bash
# HELM and its peers over one matrix in one session, interleaved round by round: one Markdown table, raw JSON beside it.
#   run_matrix.sh --bin DIR --out DIR --model DIR [--model DIR...] [--vram SIZE,...] [--prompt N,...] [--output N,...]
#                 [--rounds N] [--requests N] [--seed N] [--threads N] [--device D] [--peer-output N,...]
#                 [--peer-requests N] [--peer-reserve SIZE] [--no-accelerate] [--transformers-cpu]
#                 [--llama-bench BINARY --gguf FILE [--gguf FILE...] [--ngl N,...]] [-- helmd options]
# --bin is the folder of helm-bench and helmd. SIZE is 8GiB, 24GiB or all (the whole card; the default): HELM gets it as
# --vram, the peers a card whose other memory occupy_vram holds. At `all` the peer is transformers with everything on
# the GPU, below it Accelerate with device_map=auto. Slow peers can be given fewer tokens (--peer-output) and
# requests; --peer-reserve is GPU memory that Accelerate may not fill with weights (its --reserve).
# --gguf files belong to the models in order. In --out: helm-*.json, accelerate-*.json, llama-*.json, matrix.md, limits
# of the GPU, logs. What fails is noted and the rest goes on. Exit status: 0, 2 usage, 5 something failed.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
die() { echo "run_matrix.sh: $1" >&2; exit "${2:-2}"; }
usage() { sed -n '3,6s/^# *//p' "$0" >&2; exit 2; }

bin='' out='' vram=all prompt=128 output=128 rounds=3 requests=3 seed=1 threads='' device=auto
peer_output='' peer_requests='' peer_reserve='' accelerate=yes cpu_peer=no llama_bench='' ngl=''
models=() ggufs=() extra=()
while [ $# -gt 0 ]; do
    case $1 in
    --no-accelerate) accelerate=no; shift; continue ;;
    --transformers-cpu) cpu_peer=yes; shift; continue ;;
    --) shift; extra=("$@"); break ;;
    esac
    [ $# -ge 2 ] || usage
    case $1 in
    --model) models+=("${2%/}") ;;
    --gguf) ggufs+=("$2") ;;
    --bin | --out | --vram | --prompt | --output | --rounds | --requests | --seed | --threads | --device | --peer-output | \
        --peer-requests | --peer-reserve | --llama-bench | --ngl)
        name=${1#--}
        printf -v "${name//-/_}" %s "$2" ;;
    *) usage ;;
    esac
    shift 2
done
[ -n "$bin" ] && [ -n "$out" ] && [ ${#models[@]} -gt 0 ] || usage
for number in "$rounds" "$requests" "$seed" "${peer_requests:-1}"; do [[ $number =~ ^[0-9]+$ ]] || die "$number is no number"; done
[ -x "$bin/helm-bench" ] && [ -x "$bin/helmd" ] || die "$bin has no helm-bench and helmd" 5
[ -z "$llama_bench" ] || [ ${#ggufs[@]} -eq ${#models[@]} ] || die "--llama-bench needs one --gguf for each --model"
mkdir -p "$out" || die "cannot make $out" 5
: "${peer_output:=$output}" "${peer_requests:=$requests}"
failed=()
limits=$out/gpu_limits.json

# run NAME COMMAND...: its output in NAME.log
run() {
    local name=$1 begin=$SECONDS
    shift
    if "$@" >"$out/$name.log" 2>&1 </dev/null; then
        echo "ok     $name ($((SECONDS - begin)) s)"
    else
        local status=$?
        echo "FAILED $name (status $status): $(tail -n 1 "$out/$name.log")"
        failed+=("$name")
    fi
}

# GPU tools, where there are a compiler and a GPU
gpu=no
if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then gpu=yes; fi
for tool in occupy_vram gpu_limits; do
    [ $gpu = yes ] && [ ! -x "$out/$tool" ] || continue
    if [ -x "$here/$tool" ]; then
        cp "$here/$tool" "$out/$tool"
    elif command -v nvcc >/dev/null; then
        run "build-$tool" nvcc -O3 -arch=native -o "$out/$tool" "$here/$tool.cu"
    else
        echo "no nvcc and no $here/$tool"
    fi
done
if [ $accelerate = yes ] && ! python3 -c 'import torch, transformers, accelerate' >"$out/accelerate.log" 2>&1; then
    echo "no Accelerate: $(tail -n 1 "$out/accelerate.log")"
    accelerate=no
fi
limit() { python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$limits" "$1" 2>/dev/null; }

# The card as it is, or with all but SIZE held back; the pipe to the holder closes with this script, so it cannot be left.
hold() {
    held=''
    [ "$1" = all ] && return 0
    [ -x "$out/occupy_vram" ] || { echo "no occupy_vram: no peer at $1"; return 1; }
    coproc OCCUPY { exec "$out/occupy_vram" --leave "$1" 2>"$out/occupy.log"; }
    held=$OCCUPY_PID
    read -r -t 60 _ <&"${OCCUPY[0]}" && return 0
    echo "occupy_vram: $(tail -n 1 "$out/occupy.log")"
    release
    return 1
}
release() {
    [ -n "$held" ] || return 0
    kill "$held" 2>/dev/null
    wait "$held" 2>/dev/null
    held=''
}
held=''
trap release EXIT

bench_helm() { # MODEL VRAM NAME SEED
    local gpu_limit=()
    [ -s "$limits" ] && gpu_limit=(--vram-read "$(limit vram_read_gb_s)" --link-read "$(limit link_read_gb_s)")
    run "helm-$3" "$bin/helm-bench" --model "$1" --vram "$2" --device "$device" --prompt "$prompt" --output "$output" \
        --requests "$requests" --rounds 1 --seed "$4" ${gpu_limit[@]+"${gpu_limit[@]}"} --json "$out/helm-$3.json" \
        -- ${threads:+--threads "$threads"} ${extra[@]+"${extra[@]}"}
}
bench_accelerate() { # MODEL VRAM NAME SEED
    [ $accelerate = yes ] && [ $gpu = yes ] || return 0
    local place=(--vram "$2" ${peer_reserve:+--reserve "$peer_reserve"})
    [ "$2" = all ] && place=(--all-gpu)
    hold "$2" || { failed+=("accelerate-$3"); return; }
    run "accelerate-$3" python3 "$here/accelerate_bench.py" --model "$1" "${place[@]}" --prompt "$prompt" \
        --output "$peer_output" --requests "$peer_requests" --rounds 1 --seed "$4" ${threads:+--threads "$threads"} \
        --json "$out/accelerate-$3.json"
    release
}
bench_transformers_cpu() { # MODEL VRAM NAME SEED
    [ $cpu_peer = yes ] || return 0
    run "transformers-cpu-$3" python3 "$here/accelerate_bench.py" --model "$1" --all-cpu --prompt "$prompt" \
        --output "$peer_output" --requests "$peer_requests" --rounds 1 --seed "$4" ${threads:+--threads "$threads"} \
        --json "$out/transformers-cpu-$3.json"
}
bench_llama() { # MODEL VRAM NAME SEED GGUF
    [ -n "$llama_bench" ] || return 0
    local place=(--fit 512) bytes=''
    [ -n "$ngl" ] && place=(--ngl "$ngl")
    [ "$2" = all ] && place=(--ngl 99)
    [ "$2" = all ] || bytes=$(python3 -c 'import sys; sys.path.insert(0, sys.argv[1]); sys.dont_write_bytecode = True
from accelerate_bench import parse_size; print(parse_size(sys.argv[2]))' "$here" "$2")
    hold "$2" || { failed+=("llama-$3"); return; }
    run "llama-$3" "$here/llama_cpp.sh" --bench "$llama_bench" --gguf "$5" --model "$(basename "$1")" "${place[@]}" \
        ${bytes:+--vram "$bytes"} --prompt "$prompt" --output "$output" --requests "$requests" \
        ${threads:+--threads "$threads"} --out "$out/llama-$3.json"
    release
}

rm -f "$out"/{helm,accelerate,transformers-cpu,llama}-*.json # of an earlier matrix
echo "date: $(date -u +%FT%TZ); machine: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) CPUs, $(uname -sr)"
[ $gpu = yes ] && nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader
for ((round = 1; round <= rounds; round++)); do
    [ -x "$out/gpu_limits" ] && { "$out/gpu_limits" >"$limits" 2>"$out/gpu_limits.log" && cat "$limits" || rm -f "$limits"; }
    for ((m = 0; m < ${#models[@]}; m++)); do
        for size in ${vram//,/ }; do
            name=$(basename "${models[m]}")-$size-r$round
            engines=(bench_helm bench_accelerate bench_transformers_cpu bench_llama)
            [ $((round % 2)) = 0 ] && engines=(bench_llama bench_transformers_cpu bench_accelerate bench_helm)
            for engine in "${engines[@]}"; do "$engine" "${models[m]}" "$size" "$name" $((seed + round)) "${ggufs[m]:-}"; done
        done
    done
done

shopt -s nullglob
reports=("$out"/{helm,accelerate,transformers-cpu,llama}-*-r[0-9]*.json)
[ ${#reports[@]} -gt 0 ] || die "nothing was measured" 5
python3 "$here/peer_report.py" table "${reports[@]}" >"$out/matrix.md" || die "no table" 5
cat "$out/matrix.md"
[ ${#failed[@]} -eq 0 ] || die "failed: ${failed[*]}" 5
