#!/bin/bash
# One GGUF file on this machine's CPU: HELM with exact and int8 activations, and llama.cpp, in turns. Started by people.
#   cpu_beside_llama.sh BIN_DIR LLAMA_BENCH FILE.gguf [ROUNDS]
# LLAMA_BENCH is llama_bench.c's program. Each round: decode of 32 tokens after 128, and prompts of 128 and 512. helm-bench prints the
# read bandwidth before and after each cell. Results of a noisy machine are noise: run it on a quiet one.
set -euo pipefail
bin=${1:?usage: cpu_beside_llama.sh BIN_DIR LLAMA_BENCH FILE.gguf [ROUNDS]} llama=${2:?LLAMA_BENCH} model=${3:?FILE.gguf} rounds=${4:-3}
echo "machine: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) CPUs, $(date -u +%F), load $(cut -d' ' -f1-3 /proc/loadavg)"
for round in $(seq "$rounds"); do
    for activations in exact int8; do
        echo "== round $round: HELM, $activations"
        "$bin/helm-bench" --model "$model" --device cpu --prompt 128,512 --output 32 --requests 2 --rounds 1 -- --ctx 1024 \
            --activations $activations
    done
    for prompt in 128 512; do
        echo "== round $round: llama.cpp, prompt of $prompt"
        "$llama" --model "$model" --threads "$(nproc)" --prompt $prompt --output 32 --requests 2 --no-mmap
    done
done
