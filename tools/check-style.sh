#!/bin/bash
# What clang-format cannot see: every file opens with a comment that says what happens in it, none grows past 700 lines,
# none carries a TODO. Called by `make check-style` with the files.
set -u
bad=0
say() { echo "$1" >&2; bad=1; }
for f in "$@"; do
    head -c 2 "$f" | grep -q '/[*/]' || say "$f: no header comment (what happens here, who calls it, what it owns)"
    lines=$(wc -l <"$f")
    [ "$lines" -le 700 ] || say "$f: $lines lines (700 at most): does it hold one responsibility?"
    grep -nE '\b(TODO|FIXME|XXX|HACK)\b' "$f" /dev/null >&2 && bad=1
done
exit $bad
