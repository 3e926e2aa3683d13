#!/bin/sh
# Forecasts of the 24 cells of the accelerator beside what is measured, by a model's own programs (this build) and by rates (an
# older build), in parts that fit a call of ten minutes:
#
#   tools/bench/forecast_cells.sh PART OUT [OLD]     PART: 1 to 8; OUT: a folder, kept from call to call; OLD: the older build's bin
#   tools/bench/forecast_cells.sh cpu OUT [OLD]      nine small cells on a machine without one: let nothing else run there
#   tools/bench/forecast_cells.sh tables OUT         the tables of all parts so far
#
# Each part is one model with two to four cells of cells.py's set "forecast". Models are made in /dev/shm/helm-models. The first call on
# a machine also measures its profile (a minute). Keep the cache of profiles from part to part (XDG_CACHE_HOME) and run all of them on
# one machine. No network is needed.
set -eu
here=$(dirname "$0")
part=$1 out=$2 old=${3:-}
if [ "$part" = tables ]; then
    for result in "$out"/*/result.md; do
        cat "$result"
        echo
    done
    exit 0
fi
set=forecast device=cuda
case $part in
cpu) only='' set=cpu-forecast device=cpu ;;
1) only=8b-256,8b-8192,8b-32768,8b-1024-x8 ;;
2) only=8b-Q4_K_M-256,8b-Q4_K_M-8192,8b-Q4_K_M-32768,8b-Q4_K_M-1024-x8 ;;
3) only=8b-Q8_0-256,8b-Q8_0-8192,8b-Q8_0-32768,8b-Q8_0-1024-x8 ;;
4) only=14b-256,14b-8192 ;;
5) only=14b-Q4_K_M-256,14b-Q4_K_M-8192 ;;
6) only=14b-Q8_0-256,14b-Q8_0-8192 ;;
7) only=30b-a3b-Q4_K_M-8GiB,30b-a3b-Q4_K_M-8GiB-x8,30b-a3b-Q4_K_M-4096 ;;
8) only=30b-a3b-Q8_0-24GiB,30b-a3b-Q8_0-24GiB-x8,30b-a3b-Q8_0-4096 ;;
*) echo "there is no part $part of 1 to 8, nor is it cpu or tables" >&2 && exit 2 ;;
esac
exec "$here/cells.py" --bin "${HELM_BIN:-build/bin}" ${old:+--old "$old"} --out "$out/$part" --set "$set" --only "$only" --device "$device" --show forecast \
    --rounds 2 --seconds 540
