#!/bin/bash
# What the tables of docs/benchmarks.md about a GPU come from, in stages that each take less than ten minutes on a
# machine with 16 cores and a large card: for machines that are lent by the minute.
#   accelerator.sh --bin DIR --out DIR [--models DIR] [--peers] [--old DIR] STAGE...
#     check      kernels, queues, split and streamed golden runs, masked draws on the GPU (tests/gpu/check.sh)
#     sanitize   compute-sanitizer, its four tools over every group of kernel tests, all at once; full kernel benchmark
#     profile    helm-profile of this machine, in full
#     resident   Qwen3-4B and 8B shapes all on the GPU: decode, TTFT, prefill of 4,096, loading; --peers: transformers
#     split      8B at 8 GiB and 14B at 24 GiB: chosen plan and best thesis split, prompts 128 and 2,048; --peers: Accelerate
#     share      8B at 8 GiB, thesis split: the CPU's share beside plain reads, each decode between two of them (a minute)
#     context    8B at 8 GiB with room for 40,960 tokens: decode after 256 to 32,768 of them beside forecasts, f16 and q8_0 caches,
#                beside room for 512 alone; a prompt of 32,768 in chunks of 2,048; 8 sequences of 8,192 (under eight minutes)
#     context_all  8B all in VRAM after 256 to 32,768 tokens
#     accuracy4  predicted beside measured at 4 GiB: 0.6B, 4B and 8B; decode at prompts 128 and 4,096, TTFT also 32 and 1,024
#     accuracy16 the same at 16 GiB: 4B, 8B and 14B (each at most four minutes and a cell)
#     accuracy8  the same at 8 GiB and all: 0.6B, 4B and 8B; prompts 128 and 4,096
#     accuracy14 the same of 14B at 8, 24 GiB and all; prompts 32 and 1,024 of 8B
#     sweep      8B at 8 GiB: the chosen plan beside every third thesis split and 20 random mixtures, one round
#     compare    another build (--old: its programs) and this one, request by request: 8B all on the GPU, with 8 sequences and at
#                8 GiB, 14B at 24 GiB; fails where this one is more than 1.5 % slower
#     large      32B at 48 GiB, where host memory allows
#     agreement  log probabilities beside those of transformers (PyTorch needed): golden models, 0.6B, 4B, 8B, many plans;
#                every third split as far as HELM_AGREEMENT_SECONDS (180) go
# --bin: the folder of the programs (an unpacked `make dist`, with helm-test-gpu-* beside them for check and sanitize).
# --models (default /dev/shm/helm-models): where helm-mkmodel puts random weights of the published shapes; each stage
# removes what the next does not need unless HELM_BENCH_KEEP is set. Raw output goes to --out, tables to standard output.
# SIGTERM (as of timeout) ends it after the step that it meets: planner_bench.py then reports what it has.
# Exit status: 0, 2 usage, 5 a stage failed (the others went on), 143 cut short.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin='' out='' models=/dev/shm/helm-models peers=no old=
usage() { sed -n '2,28s/^# \{0,1\}//p' "$0" >&2; exit 2; }
while [ $# -gt 0 ] && [[ $1 == --* ]]; do
    case $1 in
    --peers) peers=yes; shift; continue ;;
    --bin | --out | --models | --old) [ $# -ge 2 ] || usage; printf -v "${1#--}" %s "$2"; shift 2 ;;
    *) usage ;;
    esac
done
[ -n "$bin" ] && [ -n "$out" ] && [ $# -gt 0 ] || usage
bin=$(cd "$bin" && pwd) || exit 2
mkdir -p "$out" "$models" || exit 5
out=$(cd "$out" && pwd)
failed=() cut_short=
trap 'cut_short=yes' TERM

# step NAME COMMAND...: its output to the screen and to NAME.log; what fails is named at the end
step() {
    local name=$1 begin=$SECONDS
    shift
    [ -z "$cut_short" ] || return 0
    echo "== $name"
    "$@" 2>"$out/$name.err" </dev/null | (trap '' TERM && exec tee "$out/$name.log") # a signal to all: the command's last words
    local status=${PIPESTATUS[0]}
    [ "$status" -eq 0 ] || { failed+=("$name"); echo "FAILED $name (status $status): $(tail -n 2 "$out/$name.err" | tr '\n' ' ')"; }
    echo "   ($((SECONDS - begin)) s)"
}
# need SIZE...: these shapes and no others lie in $models
need() {
    local have size
    for have in "$models"/*/; do
        [ -d "$have" ] || continue
        [[ " $* " == *" $(basename "$have") "* ]] || [ -n "${HELM_BENCH_KEEP:-}" ] || rm -rf "$have"
    done
    for size in "$@"; do
        [ -f "$models/$size/config.json" ] ||
            step "mkmodel-$size" "$bin/helm-mkmodel" --arch qwen3 --size "$size" --dtype bf16 --seed 1 --out "$models/$size"
    done
}
# bench NAME MODEL OPTIONS...: helm-bench with the card's limits
bench() {
    local name=$1 model=$2
    shift 2
    step "$name" "$bin/helm-bench" --model "$models/$model" --device cuda --json "$out/$name.json" --markdown - "$@"
}
planner_bench() { python3 -B "$here/planner_bench.py" "$1" --bin "$bin" --out "$out/$2" --device cuda "${@:3}"; }
# The machine in full, once a call: plans and daemons of later steps use it.
need_profile() {
    [ -f "$out/profile.json" ] || step profile "$bin/helm-profile" --force --device cuda --out "$out/profile.json"
}

stage_check() { step check "$here/../../tests/gpu/check.sh" --need-gpu --only kernels,device,home,split,stream,masks "$bin"; }
stage_sanitize() {
    step sanitize "$here/../../tests/gpu/check.sh" --need-gpu --full-bench \
        --only racecheck,memcheck,initcheck,synccheck,bench "$bin"
}
stage_profile() {
    nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current --format=csv,noheader
    need_profile
}
stage_resident() {
    need 4b 8b
    need_profile
    for model in 4b 8b; do
        bench "resident-$model" "$model" --prompt 128 --output 128 --rounds 2 -- --profile "$out/profile.json"
        bench "resident-$model-4096" "$model" --prompt 4096 --output 8 --rounds 2 -- --profile "$out/profile.json"
    done
    step token-path python3 -B "$here/token_path.py" --bin "$bin" --model "$models/8b" -- --device cuda --profile "$out/profile.json"
    [ $peers = no ] || step transformers-8b python3 -B "$here/peers/accelerate_bench.py" --model "$models/8b" --all-gpu \
        --prompt 128 --output 64 --markdown - --json "$out/transformers-8b.json"
}
stage_split() {
    need 8b
    need_profile
    step split-8b planner_bench reach split-8b --model "$models/8b" --vram 8GiB --prompt 128,2048 --rounds 2 \
        --profile "$out/profile.json"
    step token-path-8gib python3 -B "$here/token_path.py" --bin "$bin" --model "$models/8b" --output 48 -- --device cuda --vram 8GiB --ctx 256 \
        --profile "$out/profile.json"
    step token-path-8gib-thesis python3 -B "$here/token_path.py" --bin "$bin" --model "$models/8b" --output 48 -- --device cuda \
        --vram 8GiB --strategy thesis --ctx 256 --profile "$out/profile.json"
    peer 8b 8GiB 1GiB
    need 14b
    step split-14b planner_bench reach split-14b --model "$models/14b" --vram 24GiB --prompt 128 --rounds 2 \
        --profile "$out/profile.json"
    peer 14b 24GiB 3GiB
}
# peer MODEL SIZE RESERVE: Accelerate with all but SIZE of the card held by another process; RESERVE of it is left for what is not
# weights (with less it runs out of memory)
peer() {
    [ $peers = yes ] || return 0
    local holder=$bin/occupy_vram
    [ -x "$holder" ] || holder=$out/occupy_vram
    [ -x "$holder" ] || nvcc -O2 -arch=native -o "$holder" "$here/peers/occupy_vram.cu" || { failed+=("peer-$1"); return 0; }
    coproc HOLD { "$holder" --leave "$2" 2>"$out/occupy.err"; }
    local hold_pid=$HOLD_PID line
    read -r line <&"${HOLD[0]}" && echo "$line"
    step "accelerate-$1" python3 -B "$here/peers/accelerate_bench.py" --model "$models/$1" --vram "$2" --reserve "$3" --prompt 128 \
        --output 8 --requests 1 --markdown - --json "$out/accelerate-$1.json"
    kill "$hold_pid"
    wait "$hold_pid" 2>/dev/null
}
stage_compare() {
    [ -n "$old" ] || { echo "accelerator.sh: compare needs --old" >&2; failed+=(compare); return; }
    old=$(cd "$old" && pwd)
    need 8b 14b
    need_profile
    local with="--device cuda --profile $out/profile.json --ctx 1024"
    step compare python3 -B "$here/compare_builds.py" --old "$old" --new "$bin" --json "$out/compare.json" --rounds 4 \
        --cell "8b-all $models/8b 128 128 1 $with" --cell "8b-all-8 $models/8b 128 128 8 $with --parallel 8 --batch 8" \
        --cell "8b-8gib $models/8b 128 96 1 $with --vram 8GiB" --cell "14b-24gib $models/14b 128 128 1 $with --vram 24GiB"
}
stage_share() {
    need 8b
    need_profile
    step share python3 -B "$here/cpu_share.py" --bin "$bin" --model "$models/8b" --rounds 40 --seconds 50 --json "$out/share.json" \
        -- --device cuda --vram 8GiB --ctx 256 --profile "$out/profile.json"
}
stage_context() {
    need 8b
    need_profile
    step context python3 -B "$here/context_cells.py" --bin "$bin" --out "$out/context" --model "$models/8b" --profile "$out/profile.json"
}
stage_context_all() {
    need 8b
    need_profile
    bench context-all 8b --vram all --prompt 256,16384,32768 --output 64 --requests 2 --warmup 1 --rounds 1 -- --ctx 40960 \
        --profile "$out/profile.json"
}
# accuracy_at NAME VRAM MODEL...: predicted beside measured of these at one ceiling, in four minutes
accuracy_at() {
    local name=$1 vram=$2 list=() model
    shift 2
    need "$@"
    for model in "$@"; do list+=(--model "$models/$model"); done
    step "$name" planner_bench accuracy "$name" "${list[@]}" --vram "$vram" --prompt 128,4096 --ttft-prompt 32,1024 --output 32 \
        --refresh --no-parts --seconds 205
}
stage_accuracy4() { accuracy_at accuracy4 4GiB 0.6b 4b 8b; }
stage_accuracy16() { accuracy_at accuracy16 16GiB 4b 8b 14b; }
stage_accuracy8() {
    need 0.6b 4b 8b
    step accuracy8 planner_bench accuracy accuracy8 --model "$models/0.6b" --model "$models/4b" --model "$models/8b" \
        --vram 8GiB,all --prompt 128,4096 --output 48 --refresh
}
stage_accuracy14() {
    need 8b
    step accuracy8-prompts planner_bench accuracy accuracy8-prompts --model "$models/8b" --vram 8GiB,all --prompt 32,1024 --output 32 \
        --refresh
    need 14b
    step accuracy14 planner_bench accuracy accuracy14 --model "$models/14b" --vram 8GiB,24GiB,all --prompt 128,4096 --output 48 \
        --refresh
}
stage_sweep() {
    need 8b
    need_profile
    step sweep planner_bench sweep sweep --model "$models/8b" --vram 8GiB --prompt 128 --output 32 --every 3 --random 20 \
        --requests 1 --profile "$out/profile.json"
}
stage_large() {
    need 32b
    need_profile
    step split-32b planner_bench reach split-32b --model "$models/32b" --vram 48GiB --prompt 128 --output 32 --rounds 2 \
        --profile "$out/profile.json"
}
stage_agreement() {
    need 0.6b 4b 8b
    step agreement python3 -B "$here/against_transformers.py" --bin "$bin" --out "$out/agreement" \
        --golden "$here/../../tests/data/golden" --model "$models/0.6b" --model "$models/4b" --model "$models/8b" \
        --seconds "${HELM_AGREEMENT_SECONDS:-180}"
}

echo "machine: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) CPUs, $(uname -sr), $(date -u +%FT%RZ)"
for stage in "$@"; do
    declare -F "stage_$stage" >/dev/null || usage
done
for stage in "$@"; do
    [ -n "$cut_short" ] || "stage_$stage"
done
[ -z "$cut_short" ] || { echo "cut short; failed: ${failed[*]:-none}"; exit 143; }
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}"; exit 5; }
