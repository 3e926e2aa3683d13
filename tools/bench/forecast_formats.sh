#!/bin/sh
# How far forecasts of mixtures of weight formats are from measurements, over GGUF files and ceilings of VRAM.
#
#   forecast_formats.sh BIN OUT VRAM,VRAM,... FILE.gguf... [-- options of planner_bench.py accuracy]
#   forecast_formats.sh build/bin /tmp/formats 2GiB,4GiB,all 8b-q4km.gguf 8b-q5km.gguf 8b-q6k.gguf 8b-q8.gguf
#
# tools/bench/make_gguf.py makes such files. First the machine's profile gets the rates of the files' formats, with the
# seconds that each took (a machine without a profile is measured first, in a minute). Then planner_bench.py says
# forecast, measured and error of every cell, median and worst, and leaves plans, reports and result.md in OUT.
# Exit status: planner_bench.py's.
set -eu
if [ $# -lt 4 ]; then
    sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
bin=$1 out=$2 vram=$3
shift 3
models=
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    [ -e "$1" ] || { echo "forecast_formats.sh: $1: there is no such file" >&2; exit 2; }
    models="$models --model $1"
    shift
done
[ $# -eq 0 ] || shift
# shellcheck disable=SC2086 # names of models are words
exec "$(dirname "$0")/planner_bench.py" accuracy --bin "$bin" --out "$out" $models --vram "$vram" --prompt 128 --no-parts "$@"
