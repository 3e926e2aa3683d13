#!/bin/bash
# Runs llama.cpp's llama-bench over the matrix and writes its result as helm-bench's JSON. Started by run_matrix.sh and
# by people.
#   llama_cpp.sh --bench BINARY --gguf FILE --out FILE [--model NAME] [--vram BYTES] [--prompt N,...] [--output N,...]
#                [--ngl N,... | --fit MIB] [--threads N] [--requests N]
# BINARY is a llama-bench of one's own build; FILE the same weights as the HELM checkpoint, converted by llama.cpp's
#   python3 convert_hf_to_gguf.py --outtype bf16 --outfile FILE CHECKPOINT
# (a folder of helm-mkmodel needs a tokenizer for that: docs/benchmarking.md). --ngl tries each number of layers on the
# GPU; --fit lets llama.cpp choose, leaving MIB of GPU memory free. --vram is named in the report only: occupy_vram
# makes a card smaller. Flash attention is on; generation is timed after a prompt of each length, as in helm-bench.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
die() { echo "llama_cpp.sh: $1" >&2; exit "${2:-2}"; }
usage() { sed -n '4,5s/^# *//p' "$0" >&2; exit 2; }

bench='' gguf='' out='' model='' vram='' prompt=128 output=128 ngl='' fit='' threads='' requests=3
while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || usage
    case $1 in
    --bench | --gguf | --out | --model | --vram | --prompt | --output | --ngl | --fit | --threads | --requests)
        printf -v "${1#--}" %s "$2" ;;
    *) usage ;;
    esac
    shift 2
done
[ -n "$bench" ] && [ -n "$gguf" ] && [ -n "$out" ] || usage
[ -x "$bench" ] || die "$bench is no program" 5
[ -f "$gguf" ] || die "$gguf: no such file" 5
[ -z "$ngl" ] || [ -z "$fit" ] || die "--ngl and --fit exclude each other"
[ -n "$ngl$fit" ] || ngl=99
[ -n "$model" ] || model=$(basename "$gguf" .gguf)

longest=0
for p in ${prompt//,/ }; do for o in ${output//,/ }; do [ $((p + o)) -gt $longest ] && longest=$((p + o)); done; done
common=(-m "$gguf" -r "$requests" -o json -fa 1 ${threads:+-t "$threads"})
if [ -n "$fit" ]; then
    "$bench" --help 2>&1 | grep -q -- --fit-target || die "$bench is too old for --fit: give --ngl" 5
    common+=(-fitt "$fit" -fitc "$longest")
else
    common+=(-ngl "$ngl")
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$bench" "${common[@]}" -p "$prompt" -n 0 >"$work/prompt.json" || die "llama-bench failed on the prompts" 5
"$bench" "${common[@]}" -p 0 -n "$output" -d "$prompt" >"$work/output.json" || die "llama-bench failed on generation" 5
python3 "$here/peer_report.py" llama --model "$model" ${vram:+--vram "$vram"} ${fit:+--fit} --out "$out" \
    "$work/prompt.json" "$work/output.json"
