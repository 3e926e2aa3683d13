#!/bin/bash
# The tarball of `make dist` runs from a moved folder with the system's copies of its libraries hidden.
# Run by tests/run.py with the tarball as argument. Hiding: a mount namespace in which every bundled library's system
# file is covered by /dev/null, so that a program that still finds one there fails to start.
set -u
passed=0 failed=0
check() { if [ "$2" = 0 ]; then echo "ok: $1"; passed=$((passed + 1)); else echo "FAILED: $1"; failed=$((failed + 1)); fi; }
tarball=${1:?the tarball}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/first" && tar -C "$work/first" -xzf "$tarball" && mv "$work/first"/helm-* "$work/moved folder"
check "unpacks" $?
cd "$work/moved folder" || exit 1
export XDG_CACHE_HOME="$work/cache" # measured once, and quickly: caches of any size would take more memory

if unshare -m true 2>/dev/null; then namespace="unshare -m"
elif unshare -rm true 2>/dev/null; then namespace="unshare -rm"
else
    echo "skipped: no right to make a mount namespace (root or user namespaces needed)"
    echo "$passed passed, $failed failed, 1 skipped"
    exit $((failed > 0))
fi
cat >"$work/hidden.sh" <<'INNER'
for lib in lib/*; do
    name=${lib##*/}
    for system in /lib/x86_64-linux-gnu /usr/lib/x86_64-linux-gnu /usr/lib64 /lib64 /usr/local/lib /usr/lib/x86_64-linux-gnu/openblas-pthread; do
        [ -e "$system/$name" ] && mount --bind /dev/null "$(readlink -f "$system/$name")" 2>/dev/null
    done
done
"$@"
INNER
hidden() { $namespace bash "$work/hidden.sh" "$@"; }
hidden true && hidden bash -c 'head -c 4 /usr/lib/x86_64-linux-gnu/libzmq.so.5 2>/dev/null | grep -q ELF'
check "the system's libzmq is hidden" $((! $?))
hidden ./bin/helm-cli --version >"$work/out" 2>&1
status=$? # the substitution has one of its own
check "helm-cli starts: $(head -c 200 "$work/out")" $status
# Measuring takes ten seconds: `make test-full` does it; `make test` sees that helm-profile starts, and takes a profile that ships.
if [ -n "${HELM_TEST_FULL:-}" ]; then
    profile=()
    hidden ./bin/helm-profile --device cpu --threads 1 --quick --caches 20MiB >"$work/out" 2>"$work/err"
else
    profile=(--profile share/helm/profiles/thesis-rtx3090.json)
    hidden ./bin/helm-profile --version >"$work/out" 2>"$work/err"
fi
status=$?
check "measures this machine, or starts: $(tail -n 2 "$work/err" | head -c 300)" $status
hidden ./bin/helm-cli --model share/helm/demo "${profile[@]}" --device cpu --threads 1 generate --prompt "In the beginning" -n 8 --json >"$work/out" 2>"$work/err"
status=$?
check "generates text with a private daemon: $(tail -n 2 "$work/err" | head -c 300)" $status
grep -q measuring "$work/err"
check "which measures nothing" $((! $?))
python3 -c 'import json,sys; d=json.load(open(sys.argv[1])); assert len(d["tokens"]) == 8 and d["text"].strip(), d' "$work/out"
check "eight tokens and their text" $?
hidden ./bin/helm-plan --model share/helm/demo --profile share/helm/profiles/thesis-rtx3090.json --json >"$work/out" 2>"$work/err"
status=$?
check "plans for a machine that ships: $(tail -n 2 "$work/err" | head -c 300)" $status
python3 -c 'import json,sys; assert json.load(open(sys.argv[1]))["decode_tok_s"]["value"] > 0' "$work/out"
check "and says how fast it would be" $?
echo "$passed passed, $failed failed"
exit $((failed > 0))
