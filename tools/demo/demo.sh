#!/bin/bash
# `make demo`: starts helmd on the demo model and streams a continuation. Called by the Makefile with the folder of the
# programs; the prompt may be given as DEMO_PROMPT.
set -euo pipefail
bin=${1:?usage: demo.sh BIN_DIR}
here=$(cd "$(dirname "$0")/../.." && pwd)
prompt=${DEMO_PROMPT:-And it came to pass in those days, that}
echo
echo "\$ helm-cli --model tools/models/demo run \"$prompt\" -n 160 --seed 7 --stats"
exec "$bin/helm-cli" --model "$here/tools/models/demo" run "$prompt" -n 160 --seed 7 --stats
