#!/usr/bin/env python3
"""The time that each kernel adds to a step: trace.py FILE [FIRST COUNT]

FILE: of trace.c. For each kernel and size of launch, those that add most first: how often; medians in us of its time, of the gap after
the kernels in front (minus: it began before they ended), and of what it adds: from the latest end before its own to its own; the
ninth decile of that. With FIRST and COUNT also so many launches from that one on, as they came."""
import collections
import re
import statistics
import sys


def name_of(symbol):
    """The kernel and the first of its template's arguments."""
    match = re.match(r"_ZL?(\d+)(.*)", symbol)
    return f"{match[2][:int(match[1])]} {match[2][int(match[1]):][:40]}" if match else symbol


def main():
    rows = []
    with open(sys.argv[1], encoding="utf-8", errors="replace") as file:
        for line in file:
            words = line.split(None, 5)
            if len(words) == 6 and words[0].isdigit():
                rows.append((*map(int, words[:5]), name_of(words[5].strip())))
    rows.sort()
    seen, end = collections.defaultdict(list), None
    for begin, ended, *size, name in rows:
        if end is not None:
            seen[name, *size].append([(x - y) / 1e3 for x, y in ((ended, begin), (begin, end), (max(end, ended), end))])
        end = max(end or 0, ended)
    for kernel, times in sorted(seen.items(), key=lambda item: -sum(t[2] for t in item[1])):
        took, gap, added = (sorted(t[i] for t in times) for i in range(3))
        print(f"{len(times):6} took {statistics.median(took):8.2f} gap {statistics.median(gap):8.2f} adds {statistics.median(added):8.2f} "
              f"(to {added[len(added) * 9 // 10]:.2f})  {kernel}")
    first, count = map(int, (sys.argv[2:4] + ["0", "0"])[:2])
    for begin, ended, *size, name in rows[first:first + count]:
        print(f"{(begin - rows[first][0]) / 1e3:10.2f} {(ended - begin) / 1e3:8.2f} {size} {name}")


if __name__ == "__main__":
    main()
