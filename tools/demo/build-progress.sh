#!/bin/bash
# Shows how far a build is: one line that is renewed on a terminal, otherwise a line every two seconds. Called by `make demo`
# with make's output on standard input. Plain bash: mawk, the awk of Debian and Ubuntu, reads a pipe by 4 KiB.
#   build-progress.sh STEPS LOG      STEPS: lines of "  CC file" that will come; LOG: the file that gets all of make's output
set -euo pipefail
steps=${1:?usage: build-progress.sh STEPS LOG} log=${2:?usage: build-progress.sh STEPS LOG}
every=2
done_steps=0 last="starting" shown=-$every
[ "$steps" -gt 0 ] && echo "building HELM: $steps steps" >&2
show() {
    if [ -t 2 ]; then
        printf '\r\033[K[%d of %d] %s (%d s)' "$done_steps" "$steps" "$last" $SECONDS >&2
    elif [ $((SECONDS - shown)) -ge $every ]; then
        printf '  %d of %d: %s (%d s)\n' "$done_steps" "$steps" "$last" $SECONDS >&2
        shown=$SECONDS
    fi
}
: >"$log"
line=
while :; do
    status=0
    # After a timeout `part` holds the line so far, and the status is above 128.
    IFS= read -r -t $every part || status=$?
    line+=$part
    if [ $status -gt 128 ]; then
        [ "$steps" -gt 0 ] && show
        continue
    fi
    [ $status = 0 ] || [ -n "$line" ] || break
    printf '%s\n' "$line" >>"$log"
    case $line in
    "  "[A-Z]*)
        read -r kind file <<<"$line"
        done_steps=$((done_steps + 1)) last="$kind $file"
        show
        ;;
    esac
    line=
    [ $status = 0 ] || break
done
[ -t 2 ] && [ $done_steps -gt 0 ] && printf '\r\033[K' >&2
exit 0
