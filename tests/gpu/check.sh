#!/bin/bash
# Everything that needs a GPU, one line of verdict each: `make check-gpu`, or from an unpacked bundle
# (tools/gpu/bundle.sh) on a machine that has the driver and CUDA's libraries but none of HELM's.
#
#   check.sh [--need-gpu] [--full-bench] [--only NAME,NAME...] [BIN]
#
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
    -*) sed -n '2,12p' "$0" >&2; exit 2 ;;
    *) bin=$1 ;;
    esac
    shift
done
[ -n "$bin" ] || bin=$here/bin
bin=$(cd "$bin" 2>/dev/null && pwd) || { echo "check.sh: no folder of programs (BIN)" >&2; exit 2; }
for root in "$here" "$here/../.." "$bin/.." "$PWD"; do [ -d "$root/tests/data/golden" ] && break; done
logs=${HELM_CHECK_LOGS:-$PWD/gpu-check-logs}
mkdir -p "$logs" || exit 2
cd "$root" || exit 2
device=${HELM_TEST_DEVICE:-cuda}
export HELM_TEST_DEVICE=$device
[ -d "$bin/../lib" ] && export LD_LIBRARY_PATH=$(cd "$bin/../lib" && pwd)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
passed=0 failed=0 skipped=0

# verdict WORD NAME SECONDS DETAIL
verdict() { printf '%-4s %-18s %5.1f s  %s\n' "$1" "$2" "$3" "$4"; }

# run NAME LIMIT_SECONDS PATTERN COMMAND...: PATTERN finds the line of the output that sums it up
run() {
    local name=$1 limit=$2 pattern=$3 log=$logs/$1.log began=$EPOCHREALTIME rc detail spent
    shift 3
    [ -z "$only" ] || [[ $only == *,$name,* ]] || return 1
    if [ ! -x "$(command -v "$1")" ]; then
        skipped=$((skipped + 1))
        verdict SKIP "$name" 0 "there is no $1"
        return 1
    fi
    timeout -k 5 "$limit" "$@" >"$log" 2>&1
    rc=$?
    spent=$(echo "$began $EPOCHREALTIME" | tr , . | awk '{ print $2 - $1 }')
    detail=$(grep -aE "$pattern" "$log" | tail -n 1 | cut -c 1-110)
    if [ $rc -eq 124 ] || [ $rc -eq 137 ]; then
        failed=$((failed + 1))
        verdict FAIL "$name" "$spent" "not done after $limit s; last: $(tail -n 1 "$log" | cut -c 1-80)"
        return 1
    elif grep -aqE '^skipped: no CUDA|Device not supported|driver version is insufficient|has no CUDA device' "$log" ||
        { [ $rc -eq 0 ] && grep -aqE '^\[  SKIPPED \] [1-9]' "$log" && ! grep -aqE '^\[  PASSED  \] [1-9]' "$log"; }; then
        skipped=$((skipped + 1))
        verdict SKIP "$name" "$spent" "$(grep -aE 'no CUDA|not supported|insufficient' "$log" | head -n 1 | cut -c 1-100)"
        return 1
    elif [ $rc -ne 0 ]; then
        failed=$((failed + 1))
        verdict FAIL "$name" "$spent" "exit $rc: ${detail:-$(tail -n 1 "$log" | cut -c 1-110)}"
        grep -aE 'FAIL|ERROR|error:|LINE' "$log" | head -n 12 | cut -c 1-160 | sed 's/^/       /'
        return 1
    fi
    passed=$((passed + 1))
    verdict ok "$name" "$spent" "$detail"
}
golden='^\[  PASSED  \]|^[0-9]+ passed'

if [ "$device" = cuda ]; then
    command -v nvidia-smi >/dev/null &&
        nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current --format=csv,noheader
    run kernels 240 '^[0-9]+ checks' "$bin/helm-test-gpu-kernels"
fi
run device 120 "$golden" "$bin/helm-test-gpu-device" &&
    grep -aE '^(a ring|a step|copies|a word|128 small)' "$logs/device.log" | sed 's/^/       /'
run home 120 "$golden" "$bin/helm-test-gpu-home"
run split 420 "$golden" "$bin/helm-test-gpu-split"
run stream 420 "$golden" "$bin/helm-test-gpu-stream"
if [ "$device" = cuda ]; then
    rm -f "$logs/bench.log"
    # racecheck and synccheck follow every access to shared memory: few cases, and chains, which are the longest, apart
    for tool in racecheck synccheck; do
        run "$tool-chain" 150 'ERROR SUMMARY|RACECHECK SUMMARY' compute-sanitizer --tool $tool --error-exitcode 9 \
            "$bin/helm-test-gpu-kernels" --few --seed 1 --only chain
        run "$tool" 200 'ERROR SUMMARY|RACECHECK SUMMARY' compute-sanitizer --tool $tool --error-exitcode 9 \
            "$bin/helm-test-gpu-kernels" --few --seed 1 --only elementwise,select,linear,attention,expand
    done
    for tool in memcheck initcheck; do
        run "$tool" 300 'ERROR SUMMARY' compute-sanitizer --tool $tool --error-exitcode 9 \
            "$bin/helm-test-gpu-kernels" --small --seed 1
    done
    run bench 400 'decode check' "$bin/helm-bench-gpu-kernels" $bench
    [ ! -f "$logs/bench.log" ] || cat "$logs/bench.log"
fi
echo "$passed passed, $failed failed, $skipped skipped (logs: $logs)"
[ $failed -eq 0 ] && { [ $need -eq 0 ] || [ $skipped -eq 0 ]; }
