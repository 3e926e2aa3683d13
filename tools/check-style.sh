#!/bin/bash
# Checks what clang-format cannot see: every file opens with a comment that says what happens in it, none
# grows past 600 lines, no line past 110 columns (clang-format leaves comments alone), none carries a TODO.
# Called by `make check-style` with the files.
awk '
function say(text) { print text > "/dev/stderr"; bad = 1 }
function ended() { if (lines > 600) say(file ": " lines " lines (600 at most): does it hold one responsibility?") }
FNR == 1 {
    ended()
    file = FILENAME
    if ($0 !~ /^\/[*\/]/) say(file ": no header comment (what happens here, who calls it, what it owns)")
}
{ lines = FNR }
length($0) > 110 { say(file ":" FNR ": " length($0) " columns (110 at most)") }
/(^|[^A-Za-z0-9_])(TODO|FIXME|XXX|HACK)([^A-Za-z0-9_]|$)/ { say(file ":" FNR ": " $0) }
END { ended(); exit bad }' "$@"
