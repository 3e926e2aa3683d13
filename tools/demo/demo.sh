#!/bin/bash
# `make demo`: starts helmd on the demo model, streams a continuation, and says what may come next. Called by the Makefile
# with the folder of the programs; the prompt may be given as DEMO_PROMPT.
set -euo pipefail
bin=${1:?usage: demo.sh BIN_DIR}
here=$(cd "$(dirname "$0")/../.." && pwd)
prompt=${DEMO_PROMPT:-And it came to pass in those days, that}
echo
echo "\$ helm-cli --model tools/models/demo run \"$prompt\" -n 160 --seed 7 --stats"
"$bin/helm-cli" --model "$here/tools/models/demo" run "$prompt" -n 160 --seed 7 --stats
cat <<END

That was a model of 7 million parameters. Next, a real one:
  make                                                     the other programs
  $bin/helm-cli pull unsloth/Qwen3.5-4B-GGUF/Qwen3.5-4B-Q4_K_M.gguf     2.7 GB, into the hub's cache
  $bin/helm-cli --model unsloth/Qwen3.5-4B-GGUF chat
README.md goes on from there.
END
