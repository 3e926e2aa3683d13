#!/bin/bash
# Writes the demo model's training text to the file given: the King James Bible (public domain) as Debian's package
# bible-kjv prints it, one chapter a paragraph, verse numbers removed.
set -euo pipefail
out=${1:?usage: corpus.sh OUT.txt}
command -v bible >/dev/null || { echo "corpus.sh: the program 'bible' is missing: apt-get install bible-kjv" >&2; exit 1; }
bible -f gen1:1-rev22:21 | awk '
    { split($1, ref, ":"); text = $0; sub(/^[^ ]+ /, "", text)
      if (ref[1] != chapter) { if (NR > 1) printf "\n"; chapter = ref[1]; printf "%s", text } else printf " %s", text }
    END { printf "\n" }' >"$out"
echo "$(wc -l <"$out") chapters, $(wc -c <"$out") bytes in $out"
