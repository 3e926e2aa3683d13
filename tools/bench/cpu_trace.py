#!/usr/bin/env python3
"""Where the CPU worker's time of a decoded token goes: a table from what it wrote with HELM_CPU_TRACE=FILE in its environment.

  cpu_trace.py FILE [--visits]

A visit is what the CPU computes between two hand-overs (all of a step where there are none). Times are in us, means of the middle
half of steps. Of each kind of entry: how often a step, its time, what of it all threads together computed (busy), and where the
others' time went: "late" until a thread's first chunk began, "gaps" between its chunks, "tail" from its last chunk to the entry's
end; the slowest thread's rate and the median's; how often threads were taken off their CPUs, and slept,
since their chunk before, the wait in front of the entry included. Standard library only."""
import argparse
import collections
import statistics

ENTRY = "layer", "bytes", "chunks", "asked", "begin", "end"


def read(path):
    steps, entries, chunks = {}, {}, collections.defaultdict(list)
    with open(path, encoding="utf-8") as file:
        for line in file:
            word = line.split()
            if word[0] == "step":
                steps[int(word[1])] = (int(word[2]), int(word[3]))
            elif word[0] == "entry":
                entries[int(word[1]), int(word[2])] = dict(zip(ENTRY, map(int, word[3:9])), kind=" ".join(word[9:]))
            elif word[0] == "chunk":
                numbers = list(map(int, word[1:]))
                chunks[numbers[0], numbers[1]].append(numbers[2:])
    return steps, entries, chunks


def middle_steps(steps):
    ordered = sorted((to - begin, n) for n, (begin, to) in steps.items() if to > begin)
    quarter = len(ordered) // 4
    return [n for _, n in ordered[quarter:len(ordered) - quarter or None]]


def threads_of(parts):
    """By thread: its chunks [chunk, bytes, thread, from, to, switches, waits] in order."""
    by = collections.defaultdict(list)
    for part in sorted(parts, key=lambda c: c[3]):
        by[part[2]].append(part)
    return by


def account(entry, parts, threads):
    """One entry's time, by threads."""
    by, begin, end = threads_of(parts), entry["begin"], entry["end"]
    busy = sum(c[4] - c[3] for c in parts)
    late = sum(own[0][3] - begin for own in by.values()) + (threads - len(by)) * (end - begin)
    tail = sum(end - own[-1][4] for own in by.values())
    rates = [sum(c[1] for c in own) / max(1, sum(c[4] - c[3] for c in own)) for own in by.values()]
    last = max((own[-1] for own in by.values()), key=lambda c: c[4])
    return {"us": end - entry["begin"], "wait": begin - entry["asked"], "busy": busy / threads, "late": late / threads, "tail": tail / threads,
            "gaps": (threads * (end - begin) - busy - late - tail) / threads, "slow": min(rates), "rate": statistics.median(rates),
            "fast": max(rates), "joined": len(by), "last": last[4] - last[3], "last_bytes": last[1], "bytes": entry["bytes"]}


def name_of(entry):
    return f"{entry['kind']} {entry['bytes'] / 1e6:.1f} MB" if entry["bytes"] else entry["kind"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--visits", action="store_true", help="also the first chunks behind hand-overs, one by one")
    options = parser.parse_args()
    steps, entries, chunks = read(options.file)
    chosen = set(middle_steps(steps))
    threads = 1 + max((c[2] for parts in chunks.values() for c in parts), default=0)
    kinds, waits, seen = collections.defaultdict(list), [], collections.defaultdict(int)
    switched, slept, previous = collections.Counter(), collections.Counter(), {}
    for key in sorted(entries):
        entry, parts = entries[key], chunks.get(key, [])
        for part in sorted(parts, key=lambda c: c[3]):
            if key[0] in chosen and part[2] in previous:
                switched[name_of(entry)] += part[5] - previous[part[2]][0]
                slept[name_of(entry)] += part[6] - previous[part[2]][1]
            previous[part[2]] = part[5:7]
        if key[0] not in chosen or not parts:
            continue
        seen[key[0]] += 1
        before = entries.get((key[0], key[1] - 1))
        first = "first " if before and before["kind"].startswith("lane") else ""
        kinds[first + name_of(entry)].append(account(entry, parts, threads))
    count = max(1, len(chosen))
    whole = statistics.mean((steps[n][1] - steps[n][0]) / 1e3 for n in chosen) if chosen else 0
    print(f"{options.file}: {count} steps of {whole:.0f} us, {threads} threads, us of a step and an entry")
    print("| entry | a step | us a step | us | wait before | busy | late | gaps | tail | joined | GB/s | a thread: slow, median, fast | last chunk us, KB | taken off, slept a step |")
    print("| --- " * 14 + "|")
    for name, rows in sorted(kinds.items(), key=lambda item: -sum(r["us"] for r in item[1])):
        mean = {key: statistics.mean(r[key] for r in rows) for key in rows[0]}
        print(f"| {name} | {len(rows) / count:.1f} | {sum(r['us'] for r in rows) / count / 1e3:.0f} | {mean['us'] / 1e3:.1f} | {mean['wait'] / 1e3:.1f} | "
              f"{mean['busy'] / 1e3:.1f} | {mean['late'] / 1e3:.1f} | {mean['gaps'] / 1e3:.1f} | {mean['tail'] / 1e3:.1f} | {mean['joined']:.1f} | "
              f"{mean['bytes'] / max(1, mean['us']):.1f} | {mean['slow']:.2f}, {mean['rate']:.2f}, {mean['fast']:.2f} | {mean['last'] / 1e3:.1f}, {mean['last_bytes'] / 1e3:.0f} | "
              f"{switched[name.removeprefix('first ')] / count:.1f}, {slept[name.removeprefix('first ')] / count:.1f} |")
    by_thread = collections.defaultdict(lambda: [0, 0])
    sizes = collections.defaultdict(list)
    for key, parts in chunks.items():
        for c in parts if key[0] in chosen else ():
            if c[1]:
                by_thread[c[2]][0] += c[1]
                by_thread[c[2]][1] += c[4] - c[3]
                sizes[1 << (c[1] // 1024).bit_length()].append(c[1] / max(1, c[4] - c[3]))
    print("GB/s by thread: " + ", ".join(f"{t}: {b / max(1, ns):.2f}" for t, (b, ns) in sorted(by_thread.items())))
    print("GB/s by chunk, up to KiB: " + ", ".join(f"{size}: {statistics.median(rates):.2f} ({len(rates) / count:.0f})" for size, rates in sorted(sizes.items())))
    if options.visits:
        print_visits(steps, entries, chunks, sorted(chosen)[:2])


def print_visits(_steps, entries, chunks, chosen):
    for key in sorted(entries):
        if key[0] not in chosen or key not in chunks:
            continue
        entry = entries[key]
        print(f"step {key[0]} {name_of(entry)} layer {entry['layer']}: asked {(entry['asked'] - entry['begin']) / 1e3:.1f}, end {(entry['end'] - entry['begin']) / 1e3:.1f}")
        for thread, own in sorted(threads_of(chunks[key]).items()):
            print(f"  {thread:2}: " + " ".join(f"{(c[3] - entry['begin']) / 1e3:.0f}-{(c[4] - entry['begin']) / 1e3:.0f}({c[1] // 1024})" for c in own))


if __name__ == "__main__":
    main()
