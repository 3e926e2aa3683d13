#!/bin/bash
# Everything that needs a GPU, one line of verdict each: `make check-gpu`, or from an unpacked bundle
# (tools/gpu-bundle.sh) on a machine that has the driver and CUDA's libraries but none of HELM's.
#
#   check.sh [--need-gpu] [--full-bench] [--only NAME,NAME...] [BIN]
#
# NAME: kernels, or kernels-TEST of one of `helm-test-gpu-kernels --list`; device, home, split, stream, tiers, gguf, masks (needs
# helmd in BIN: gpu-bundle.sh --programs), models or models-TEST (golden models through helmd, in a tree), bench, and of compute-sanitizer TOOL-GROUP (racecheck-linear), TOOL for all its groups,
# or GROUP for all tools. TOOL: racecheck, memcheck, initcheck, synccheck; GROUP: chain, linear, attention, delta, elementwise, packed,
# blocks, integer, experts, experts_few.
# BIN: the folder of the helm-test-gpu-* programs; else bin/ beside this script. Runs in the folder that has
# tests/data/golden: the one above BIN, above this script, or the current one. Whole outputs go to
# $HELM_CHECK_LOGS (default: gpu-check-logs). HELM_TEST_DEVICE=emulated runs what needs no GPU.
# Exit 0: nothing failed; 1: something did, or with --need-gpu something was skipped; 2: usage.
set -u
here=$(cd "$(dirname "$0")" && pwd)
need=0 bench=--quick only= bin=
while [ $# -gt 0 ]; do
    case $1 in
    --need-gpu) need=1 ;;
    --full-bench) bench= ;;
    --only) only=,${2:?--only needs names},; shift ;;
    -*) sed -n '2,15p' "$0" >&2; exit 2 ;;
    *) bin=$1 ;;
    esac
    shift
done
[ -n "$bin" ] || bin=$here/bin
bin=$(cd "$bin" 2>/dev/null && pwd) || { echo "check.sh: no folder of programs (BIN)" >&2; exit 2; }
for root in "$here" "$here/../.." "$bin/.." "$PWD"; do [ -d "$root/tests/data/golden" ] && break; done
logs=${HELM_CHECK_LOGS:-$PWD/gpu-check-logs}
mkdir -p "$logs" && logs=$(cd "$logs" && pwd) || exit 2
cd "$root" || exit 2
device=${HELM_TEST_DEVICE:-cuda}
sanitize_limit=${HELM_SANITIZE_SECONDS:-200} # of each tool and group
export HELM_TEST_DEVICE=$device
[ -d "$bin/../lib" ] && export LD_LIBRARY_PATH=$(cd "$bin/../lib" && pwd)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
passed=0 failed=0 skipped=0

# selected NAME: NAME or, of TOOL-GROUP, either alone is in --only, or there is none
selected() { [ -z "$only" ] || [[ $only == *,$1,* || $only == *,${1%%-*},* || $only == *,${1#*-},* ]]; }

# verdict WORD NAME SECONDS DETAIL
verdict() { printf '%-4s %-21s %5.1f s  %s\n' "$1" "$2" "$3" "$4"; }

# Races that racecheck names and that are none, as pairs of accesses (`between A and B`), each with its reason:
# - Decoders read blocks of 2-byte alignment as pairs of words. The second word of a tile's last pair may lie after
#   the copied bytes: its bits are shifted out. It was copied there for another warp's tile, whose end racecheck does not see
#   through the warp that asked for both.
known_races='bulk_copy\(.* and .*block_words<\(unsigned int\)2, \(bool\)1>::load<'

# races LOG: every hazard of racecheck's log that is not known, as a line. Status 0: the hazards of its summary are all known.
races() {
    local all
    all=$(awk '/Race reported between/ { sub(/.*between /, ""); first = $0; next }
               first { sub(/^=+ */, ""); print first " " $0; first = "" }' "$1")
    grep -avE "$known_races" <<<"$all"
    [ "$(grep -acE "$known_races" <<<"$all")" = "$(sed -n 's/.*RACECHECK SUMMARY: \([0-9]*\) hazard.*/\1/p' "$1")" ]
}

# judge NAME LIMIT_SECONDS PATTERN COMMAND...: runs it and prints the verdict; 0 passed, 1 failed, 2 skipped. PATTERN finds
# the line of the output that sums it up; an output without one has failed.
judge() {
    local name=$1 limit=$2 pattern=$3 log=$logs/$1.log began=$EPOCHREALTIME rc detail spent
    shift 3
    if [ ! -x "$(command -v "$1")" ]; then
        verdict SKIP "$name" 0 "there is no $1"
        return 2
    fi
    timeout -k 5 "$limit" "$@" >"$log" 2>&1 </dev/null
    rc=$?
    spent=$(echo "$began $EPOCHREALTIME" | tr , . | awk '{ print $2 - $1 }')
    detail=$(grep -aE "$pattern" "$log" | tail -n 1 | cut -c 1-110)
    if [ $rc -eq 124 ] || [ $rc -eq 137 ]; then
        verdict FAIL "$name" "$spent" "not done after $limit s; last: $(tail -n 1 "$log" | cut -c 1-80)"
        return 1
    elif grep -aqE '^skipped: no CUDA|Device not supported|driver version is insufficient|has no CUDA device' "$log" ||
        { [ $rc -eq 0 ] && grep -aqE '^\[  SKIPPED \] [1-9]' "$log" && ! grep -aqE '^\[  PASSED  \] [1-9]' "$log"; }; then
        verdict SKIP "$name" "$spent" "$(grep -aE 'no CUDA|not supported|insufficient' "$log" | head -n 1 | cut -c 1-100)"
        return 2
    elif [ $rc -eq 9 ] && [[ $name == racecheck-* ]] && [ -n "$detail" ] && races "$log" >/dev/null; then
        detail+=": all known"
    elif [ $rc -ne 0 ] || [ -z "$detail" ]; then
        verdict FAIL "$name" "$spent" "exit $rc: ${detail:-no summary; last: $(tail -n 1 "$log" | cut -c 1-90)}"
        { [[ $name == racecheck-* ]] && races "$log"; grep -aE 'FAIL|ERROR|error:|LINE' "$log"; } | head -n 12 | cut -c 1-160 | sed 's/^/       /'
        return 1
    fi
    verdict ok "$name" "$spent" "$detail"
}

# count STATUS: of judge
count() {
    case $1 in
    0) passed=$((passed + 1)) ;;
    2) skipped=$((skipped + 1)) ;;
    *) failed=$((failed + 1)) ;;
    esac
}

# run NAME LIMIT_SECONDS PATTERN COMMAND...: 0: it was selected and passed
run() {
    local status
    selected "$1" || return 1
    judge "$@"
    status=$?
    count $status
    return $status
}

# beside NAME LIMIT_SECONDS PATTERN COMMAND...: as run, beside the others of its kind, at most as many as there are CPUs (each
# keeps one busy, and the GPU hardly); verdicts as they end. beside_end: waits for all of them and counts.
beside_names=()
beside() {
    local name=$1
    selected "$name" || return
    beside_names+=("$name")
    rm -f "$logs/$name.status"
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; done
    {
        said=$(judge "$@")
        echo $? >"$logs/$name.status"
        printf '%s\n' "$said"
    } &
}
beside_end() {
    local name
    wait
    for name in ${beside_names[@]+"${beside_names[@]}"}; do
        count "$(cat "$logs/$name.status" 2>/dev/null || echo 1)"
        rm -f "$logs/$name.status"
    done
    beside_names=()
}

# sanitize GROUP=TEST,TEST...: each tool of compute-sanitizer over each group of kernel tests, as TOOL-GROUP, few cases. The
# slowest are first.
sanitize() {
    local tool group
    for tool in racecheck memcheck initcheck synccheck; do
        for group in "$@"; do
            beside "$tool-${group%%=*}" "$sanitize_limit" 'ERROR SUMMARY|RACECHECK SUMMARY' compute-sanitizer --tool $tool \
                --error-exitcode 9 --print-limit 10000 "$bin/helm-test-gpu-kernels" --few --seed 1 --only "${group#*=}"
        done
    done
    beside_end
}
golden='^\[  PASSED  \]|^[0-9]+ passed'

if [ "$device" = cuda ]; then
    command -v nvidia-smi >/dev/null &&
        nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current --format=csv,noheader
    tests=$("$bin/helm-test-gpu-kernels" --list) || tests=
    [ -n "$tests" ] || run kernels 1 '^$' "$bin/helm-test-gpu-kernels" --list
    for test in $tests; do beside "kernels-$test" 420 '^[0-9]+ checks' "$bin/helm-test-gpu-kernels" --only "$test"; done
    beside_end
fi
run device 120 "$golden" "$bin/helm-test-gpu-device" &&
    grep -aE '^(a ring|a step|copies|a word|128 small|a wait)' "$logs/device.log" | sed 's/^/       /'
run home 120 "$golden" "$bin/helm-test-gpu-home"
run split 420 "$golden" "$bin/helm-test-gpu-split"
run stream 420 "$golden" "$bin/helm-test-gpu-stream"
run tiers 240 "$golden" "$bin/helm-test-gpu-tiers"
run gguf 240 "$golden" "$bin/helm-test-gpu-gguf"
if [ -x "$bin/helmd" ]; then
    run masks 120 '^[0-9]+ passed' python3 "$here/masks.py" "$bin" && grep -a '^[0-9]* of' "$logs/masks.log" | sed 's/^/       /'
elif selected masks; then
    verdict SKIP masks 0 "there is no helmd in $bin"
    count 2
fi
export HELM_BIN=$bin HELM_PYPROTO=${HELM_PYPROTO:-$PWD/build/release/pyproto}
for test in architectures families gemma gemma_e grid_formats helmd_hybrids helmd_mtp helmd_shared latent; do
    if [ -x "$bin/helmd" ] && [ -f "$HELM_PYPROTO/helm_pb2.py" ] && [ -f tests/process/test_$test.py ]; then
        beside "models-$test" 240 '^[0-9]+ passed' tests/process/test_$test.py
    elif selected "models-$test"; then
        verdict SKIP "models-$test" 0 "there is no helmd in $bin or no helm_pb2.py in $HELM_PYPROTO"
        count 2
    fi
done
beside_end
if [ "$device" = cuda ]; then
    rm -f "$logs/bench.log"
    sanitize chain=chain linear=linear attention=attention delta=delta elementwise=elementwise,select packed=gemv_packed,expand blocks=blocks,gemm_blocks,scales integer=gemm_integer experts=experts experts_few=experts_few
    run bench 400 'decode check' "$bin/helm-bench-gpu-kernels" $bench
    [ ! -f "$logs/bench.log" ] || cat "$logs/bench.log"
fi
echo "$passed passed, $failed failed, $skipped skipped (logs: $logs)"
[ $failed -eq 0 ] && { [ $need -eq 0 ] || [ $skipped -eq 0 ]; }
