#!/usr/bin/env python3
"""Two builds of HELM side by side: decode and TTFT of each, interleaved request by request, and the ratio of the medians.

  compare_builds.py --old BIN --new BIN --cell "NAME MODEL PROMPT OUTPUT CONCURRENCY [helmd options]"... [--starts N]
                    [--rounds N] [--limit PERCENT] [--json FILE]

For each cell both builds' helmd are started on the model and stay loaded; a round lets helm-bench send the same requests to
one and then to the other, and the next round the other way round. --starts (default 2): the pair is loaded anew so often, the
order of loading changing, because where memory comes to lie differs from start to start. Printed are the medians over all
rounds (of several requests at once: all their tokens a second) and the median of the rounds' ratios (new by old; of TTFT old by new: above 1 is faster).
Exit status: 0; 1 a cell is slower than --limit (1.5) percent; 2 usage; 5 something failed. Standard library only."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from token_path import Daemon, die


def measure(bin_folder, endpoint, cell, report):
    command = [os.path.join(bin_folder, "helm-bench"), "--connect", endpoint, "--prompt", cell["prompt"], "--output",
               cell["output"], "--concurrency", cell["concurrency"], "--requests", str(max(2, int(cell["concurrency"]))),
               "--warmup", "1", "--rounds", "1", "--read-buffer", "0", "--json", report]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        die(f"helm-bench: {done.stderr.strip() or done.stdout.strip()}")
    with open(report, encoding="utf-8") as file:
        found = json.load(file)["cells"][0]
    return found


def read_cell(text):
    words = text.split()
    if len(words) < 5:
        die(f"--cell '{text}': NAME MODEL PROMPT OUTPUT CONCURRENCY [helmd options]")
    return dict(zip(("name", "model", "prompt", "output", "concurrency"), words), helmd=words[5:])


def figure(found, key):
    """The median that helm-bench reports under one of its names."""
    value = found.get(key)
    return value["p50"] if isinstance(value, dict) else value


class Options:
    def __init__(self, bin_folder, cell):
        self.bin, self.model, self.helmd = bin_folder, cell["model"], cell["helmd"]


def compare(doc, cell):
    rows, chosen = {"old": [], "new": []}, {"old": [], "new": []}
    with tempfile.TemporaryDirectory() as work:
        for start in range(doc.starts):
            order = ["old", "new"] if start % 2 == 0 else ["new", "old"]
            daemons = {}
            try:
                for which in order:
                    rundir = os.path.join(work, f"{which}{start}")
                    os.mkdir(rundir, 0o700)
                    daemons[which] = Daemon(Options(getattr(doc, which), cell), rundir)
                for turn in range(doc.rounds):
                    for which in order if turn % 2 == 0 else order[::-1]:
                        rows[which].append(measure(getattr(doc, which), daemons[which].endpoint, cell,
                                                   os.path.join(work, "report.json")))
            finally:
                for daemon in daemons.values():
                    daemon.process.terminate()
                for which, daemon in daemons.items():
                    daemon.process.wait()
                    with open(daemon.log, encoding="utf-8") as log: # a choice made by trying may differ from start to start
                        chosen[which] += [line.strip() for line in log if "fetched into the L1" in line or " ready: " in line]
    return rows, chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], usage=__doc__.split("\n\n")[1])
    for name in ("--old", "--new"):
        parser.add_argument(name, required=True)
    parser.add_argument("--cell", action="append", required=True, type=read_cell)
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=1.5)
    parser.add_argument("--json")
    doc = parser.parse_args()
    results, slower = [], 0
    print(f"{'cell':24} {'decode old':>11} {'new':>9} {'ratio':>7}   {'TTFT ms old':>11} {'new':>9} {'ratio':>7}", flush=True)
    for cell in doc.cell:
        rows, chosen = compare(doc, cell)
        line = {"cell": cell, "rows": rows, "said": chosen}
        several = int(cell["concurrency"]) > 1
        for key, name, invert in (("throughput_tok_s" if several else "decode_tok_s", "decode", False), ("ttft_ms", "ttft", True)):
            old, new = ([figure(r, key) for r in rows[w]] for w in ("old", "new"))
            pairs = [(a, b) for a, b in zip(old, new) if a and b]
            if not pairs:
                line[name] = None
                continue
            ratios = [a / b if invert else b / a for a, b in pairs]
            line[name] = {"old": statistics.median(a for a, _ in pairs), "new": statistics.median(b for _, b in pairs),
                          "ratio": statistics.median(ratios), "ratios": ratios}
        slow = any(line[n] and line[n]["ratio"] < 1 - doc.limit / 100 for n in ("decode", "ttft"))
        slower += slow
        text = [f"{line[n]['old']:11.2f} {line[n]['new']:9.2f} {line[n]['ratio']:7.3f}" if line[n] else f"{'-':>29}"
                for n in ("decode", "ttft")]
        print(f"{cell['name']:24} {text[0]}   {text[1]}{'   SLOWER' if slow else ''}", flush=True)
        results.append(line)
    if doc.json:
        with open(doc.json, "w", encoding="utf-8") as file:
            json.dump(results, file)
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
