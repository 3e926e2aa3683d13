#!/bin/bash
# The checks of a commit on a real GPU within SECONDS (390), from an unpacked bundle (go.sh): kernels against their references, golden
# models through helmd, golden runs, references against transformers, then compute-sanitizer over GROUPS. Verdicts go to standard output and
# $OUT/checks.txt as they come, what failed to $OUT/logs.txz. Exit status 1: something failed or did not end.
#
#   tools/bench/device/checks.sh [--seconds N] [--sanitize "TOOL-GROUP ..."] [--kernels "TEST ..."] [--references "NAME ..."] [--no-models]
#
# A TOOL-GROUP is one of tests/gpu/check.sh; a TEST one of helm-test-gpu-kernels --list (all); a NAME a model of
# family_references.py or gemma_references.py (olmo3 gemma4moe gemma4e). An empty list leaves its checks out.
set -u
began=$SECONDS limit=390 kernels=all models=1 references="olmo3 gemma4moe gemma4e"
sanitize="memcheck-attention memcheck-linear memcheck-experts_few memcheck-chain racecheck-attention racecheck-experts_few racecheck-linear"
while [ $# -gt 0 ]; do
    case $1 in
    --seconds) limit=$2; shift ;;
    --sanitize) sanitize=$2; shift ;;
    --kernels) kernels=$2; shift ;;
    --references) references=$2; shift ;;
    --no-models) models=0 ;;
    *) sed -n '2,9p' "$0" >&2; exit 2 ;;
    esac
    shift
done
OUT=${OUT:-out}
mkdir -p "$OUT"
logs=$(mktemp -d)

# left: seconds until the end, at least 5
left() { local n=$((limit - (SECONDS - began))); echo $((n > 5 ? n : 5)); }

# part NAME COMMAND...: lines of verdict into checks.txt, cut off at the end
part() {
    local name=$1
    shift
    HELM_CHECK_LOGS=$logs/$name timeout -k 5 "$(left)" "$@" 2>&1 | grep --line-buffered -aE '^(ok|FAIL|SKIP|NVIDIA) |^ {7}|passed' | tee -a "$OUT/checks.txt"
    [ "${PIPESTATUS[0]}" != 124 ] || echo "FAIL $name: not done" | tee -a "$OUT/checks.txt"
}

# reference NAME: transformers' own python3, with none of the modules carried for /usr/bin/python3
reference() {
    local script=family_references.py
    [[ $1 == gemma* ]] && script=gemma_references.py
    echo "$1: $(env -u PYTHONPATH -u PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION OMP_NUM_THREADS=2 timeout "$(left)" \
        python3 "tests/golden/$script" --check tests/data/golden "$1" 2>&1 | tail -n 3 | tr '\n' ' ')" | tee -a "$OUT/checks.txt"
}

check=tests/gpu/check.sh
[ "$kernels" != all ] || kernels=$(build/bin/helm-test-gpu-kernels --list)
[ -z "$kernels" ] || part kernels $check --only "$(for test in $kernels; do printf 'kernels-%s,' "$test"; done)" build/bin &
# The slowest of the kernels' tests keeps one CPU: the tools of compute-sanitizer run beside it when the others have ended.
beside=()
for name in $references; do reference "$name" & beside+=($!); done
if [ $models = 1 ]; then
    part models $check --only models build/bin & beside+=($!)
    part golden $check --only device,home,split,stream,tiers,gguf,masks build/bin & beside+=($!)
fi
[ ${#beside[@]} = 0 ] || wait "${beside[@]}"
[ -z "$sanitize" ] || HELM_SANITIZE_SECONDS=$(left) part sanitize $check --only "${sanitize// /,}" build/bin
wait
tar -C "$logs" -c . | xz -T4 -1 >"$OUT/logs.txz"
failed=$(grep -acE '^FAIL' "$OUT/checks.txt")
echo "$((SECONDS - began)) s, $(grep -acE '^ok ' "$OUT/checks.txt") ok, $failed failed, $(grep -acE '^SKIP' "$OUT/checks.txt") skipped" | tee -a "$OUT/checks.txt"
[ "$failed" = 0 ]
