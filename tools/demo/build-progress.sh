#!/bin/bash
# Shows how far a build is: one line that is renewed on a terminal, else a line now and then. Called by `make demo` with
# what make prints on standard input.
#   build-progress.sh STEPS LOG      STEPS: lines of "  CC file" that will come; LOG: where all of it goes
set -euo pipefail
steps=${1:?usage: build-progress.sh STEPS LOG} log=${2:?}
terminal=
[ -t 2 ] && terminal=1
exec awk -v steps="$steps" -v log_file="$log" -v terminal="$terminal" '
    BEGIN { if (steps > 0) printf "building HELM: %d steps\n", steps > "/dev/stderr" }
    { print > log_file; fflush(log_file) }
    /^  (CC|LINK|AR|PROTO|NVCC|CXX) / {
        done++
        if (terminal) printf "\r\033[K[%d of %d] %s %s", done, steps, $1, $2 > "/dev/stderr"
        else if (done % 25 == 0) printf "  %d of %d: %s\n", done, steps, $2 > "/dev/stderr"
        fflush("/dev/stderr")
    }
    END { if (terminal && done) printf "\r\033[K" > "/dev/stderr" }'
