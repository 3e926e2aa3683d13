#!/usr/bin/env python3
"""Draws which folder includes which, and fails on an arrow that goes up, sideways into another process, or in a circle.

    check-includes.py [--draw] [ROOT]

Called by `make check-style`. Reads the #include lines of every tracked source outside tests/; a folder is the unit. The
processes' folders (daemon, worker-cpu, worker-gpu, client) know common and proto; common knows none of them; tools know all.
--draw prints every arrow, folder by folder from the lowest to the highest, with its number of includes."""
import collections
import os
import re
import subprocess
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
PROCESSES = {"daemon", "worker-cpu", "worker-gpu", "client"}
# which folders each top folder may include, beside itself
MAY = {"common": {"proto"}, "proto": set(), "tools": PROCESSES | {"common", "proto"}}
MAY.update({process: {"common", "proto"} for process in PROCESSES})


def arrows(root):
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.c", "*.h", "*.cu", "*.cuh"],
                            cwd=root, capture_output=True, text=True, check=True).stdout.split()
    found = collections.defaultdict(list)
    for path in listed:
        full = os.path.join(root, path)
        if path.startswith("tests/") or not os.path.exists(full):
            continue
        with open(full, encoding="utf-8") as file:
            text = file.read()
        for to in INCLUDE.findall(text):
            if to.endswith(".pb-c.h"):
                to = "proto/" + os.path.basename(to)
            elif not os.path.exists(os.path.join(root, to)):
                continue  # a system's header in quotes
            if to.startswith("tests/"):
                continue  # the emulator's stand-ins, under a macro
            if os.path.dirname(path) != os.path.dirname(to):
                found[os.path.dirname(path), os.path.dirname(to)].append(f"{path} includes {to}")
    return found


def circles(graph):
    """Strongly connected components of more than one folder (Tarjan 1972)."""
    index, low, stack, result = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for to in sorted(graph[node]):
            if to not in index:
                visit(to)
                low[node] = min(low[node], low[to])
            elif to in stack:
                low[node] = min(low[node], index[to])
        if low[node] == index[node]:
            group = stack[stack.index(node):]
            del stack[stack.index(node):]
            if len(group) > 1:
                result.append(sorted(group))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return result


def height(graph, node, seen=()):
    return 0 if node in seen else max([1 + height(graph, to, seen + (node,)) for to in graph[node]], default=0)


def main():
    draw = "--draw" in sys.argv
    found = arrows(next((a for a in sys.argv[1:] if not a.startswith("-")), "."))
    graph = collections.defaultdict(set)
    for source, to in found:
        graph[source].add(to)
        graph.setdefault(to, set())
    bad = 0
    for (source, to), lines in sorted(found.items()):
        top, under = source.split("/")[0], to.split("/")[0]
        if top != under and under not in MAY.get(top, set()):
            bad += 1
            print(f"{source} must not know {to}: {lines[0]}", file=sys.stderr)
    rings = circles(graph)
    for ring in rings:
        bad += 1
        print("circle: " + ", ".join(ring), file=sys.stderr)
        for (source, to), lines in sorted(found.items()):
            if source in ring and to in ring:
                print(f"  {source} -> {to} ({len(lines)}): {lines[0]}", file=sys.stderr)
    if draw and not rings:
        for node in sorted(graph, key=lambda n: (height(graph, n), n)):
            print(node + "".join(f"\n  -> {to} ({len(found[node, to])})" for to in sorted(graph[node])))
    print(f"{len(graph)} folders, {len(found)} arrows between them, {len(rings)} circles, {bad - len(rings)} against the order")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
