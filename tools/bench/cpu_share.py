#!/usr/bin/env python3
"""How much of the memory's read bandwidth the CPU worker gets out of its share of a split model, where that bandwidth
changes within minutes: each decode stands between two plain reads with the same threads, and only the three are compared.

  cpu_share.py --bin DIR --model DIR [--rounds N] [--output N] [--buffer SIZE] [--seconds S] [--json FILE] [-- helmd options]

Starts helmd (--strategy thesis unless its options name a strategy or a plan) and helm-bench-read twice: over a buffer of its
own, far beyond the caches, and over the weights themselves, where the daemon's arena has them. A round: both reads while the
daemon idles, a decode of N tokens (default 8) at batch 1 through the socket with helmd's own counters taken before and after,
both reads. The reads after one decode are those before the next.
  share           bytes of weights that the CPU worker read, by its busy time (attention, norms and all), by the two reads' mean
  of the same     the same by the reads of the weights' own memory: what it lies on (pages, node) is out of the comparison
  of whole steps  the same by the steps' time less the other workers' busy time: hand-overs and the coordinator are the CPU's
--rounds default 30; --seconds: begin no round after so long (default 600). Standard library only.
Exit status: 0; 2 usage; 5 something failed: counters that did not move, steps of unlike work, times that do not add up, a
share that only caches explain (more than 1.2)."""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from token_path import Daemon, bench, die, parse, parser_of, status

GIB = 1 << 30
PLAUSIBLE_SHARE = 1.2
CLOSE_READS = 0.05  # two reads around a decode no further apart than this: the memory was left alone meanwhile
TARGET = 0.92


class Reader:
    """helm-bench-read with the worker's threads on the worker's node; `with` ends it."""

    def __init__(self, options, worker, memory):
        command = [os.path.join(options.bin, "helm-bench-read"), "--threads", str(worker["threads"]), "--node",
                   str(worker["numa_node"])] + memory
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        words = self.process.stdout.readline().split()
        if len(words) != 4 or words[0] != "ready" or int(words[1]) != worker["threads"]:
            die(f"helm-bench-read: {' '.join(words) or 'ended'}")
        self.bytes, self.huge_bytes = int(words[2]), int(words[3])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()

    def gb_s(self):
        self.process.stdin.write("read\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line or float(line) <= 0:
            die(f"helm-bench-read: no figure but '{line.strip()}'")
        return float(line)


def arena_of(pid):
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        if os.readlink(path).startswith("/memfd:helm-arena"):
            return path
    return die("helmd keeps no arena open")


def worker_of(state, name):
    for worker in state["workers"]:
        if worker["name"] == name:
            return worker
    return None


def difference(before, after, output):
    """What one decode moved of helmd's counters; dies where that makes no sense."""
    steps = after["steps_total"] - before["steps_total"]
    if steps < output:
        die(f"{output} tokens in {steps} steps: the counters do not move with the work")
    old, new = worker_of(before, "cpu"), worker_of(after, "cpu")
    if new["epoch"] != old["epoch"]:
        die("the CPU worker was restarted")
    moved = {"steps": steps, "cpu_bytes": new["weight_bytes_read"] - old["weight_bytes_read"],
             "cpu_busy_s": new["busy_seconds"] - old["busy_seconds"],
             "steps_s": after["seconds_steps"] - before["seconds_steps"],
             "others_busy_s": sum(new["busy_seconds"] - old["busy_seconds"]
                                  for old, new in zip(before["workers"], after["workers"]) if new["name"] != "cpu")}
    for what in ("cpu_bytes", "cpu_busy_s", "steps_s"):
        if moved[what] <= 0:
            die(f"{what} did not move in {steps} steps")
    if moved["cpu_busy_s"] > 1.01 * moved["steps_s"]:
        die(f"the CPU worker was busy for {moved['cpu_busy_s']:.6f} s of {moved['steps_s']:.6f} s of steps")
    for old, new in zip(before["workers"], after["workers"]):  # a share as small as a layer may take no time worth counting
        if all(new[key] <= old[key] for key in ("weight_bytes_read", "link_bytes", "busy_seconds", "wait_seconds")):
            die(f"the {new['name']} worker's counters did not move")
    if moved["others_busy_s"] >= moved["steps_s"]:
        die(f"the other workers were busy for {moved['others_busy_s']:.6f} s of {moved['steps_s']:.6f} s of steps")
    return moved


def one_round(options, endpoint, report, before_gb_s, readers):
    before = status(options, endpoint)
    cell = bench(options, endpoint, report)
    moved = difference(before, status(options, endpoint), options.output)
    after_gb_s = [reader.gb_s() for reader in readers]
    read, same = ((b + a) / 2 for b, a in zip(before_gb_s, after_gb_s))
    read_before, read_after = before_gb_s[0], after_gb_s[0]
    decode = moved["cpu_bytes"] / moved["cpu_busy_s"] / 1e9
    whole = moved["cpu_bytes"] / (moved["steps_s"] - moved["others_busy_s"]) / 1e9
    return dict(moved, read_before_gb_s=read_before, read_after_gb_s=read_after, read_gb_s=read, decode_gb_s=decode,
                same_after_gb_s=after_gb_s[1], same_gb_s=same, same_share=decode / same, share=decode / read, whole_gb_s=whole, whole_share=whole / read,
                reads_apart=abs(read_after - read_before) / read, tok_s=cell["throughput_tok_s"]["p50"])


def spread(values):
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else 3 * values
    return {"median": middle, "low_quartile": low, "high_quartile": high, "min": min(values), "max": max(values),
            "count": len(values)}


def check_rounds(rounds):
    """Dies unless each did the same work, and no faster than memory can."""
    bytes_a_step = [r["cpu_bytes"] / r["steps"] for r in rounds]
    if max(bytes_a_step) > 1.001 * min(bytes_a_step):
        die(f"between {min(bytes_a_step):.0f} and {max(bytes_a_step):.0f} bytes of weights a step: steps are not alike")
    share = statistics.median(r["share"] for r in rounds)
    if share > PLAUSIBLE_SHARE:
        die(f"{100 * share:.0f} % of a plain read: caches hold the CPU's {bytes_a_step[0] / 1e9:.3f} GB, or the read is wrong")


def print_report(result):
    print(f"| {result['rounds_done']} rounds of {result['output']} tokens | median | quartiles | least | most |\n"
          "| --- | --- | --- | --- | --- |")
    for what, key, factor, unit in (("plain read around a decode", "read_gb_s", 1, "GB/s"),
                                    ("CPU worker, while it computes", "decode_gb_s", 1, "GB/s"),
                                    ("**its share of the read**", "share", 100, "%"),
                                    ("plain read of the weights' own memory", "same_gb_s", 1, "GB/s"),
                                    ("**its share of that**", "same_share", 100, "%"),
                                    ("share, rounds whose reads are within 5 %", "close_share", 100, "%"),
                                    ("share of whole steps less the other workers", "whole_share", 100, "%"),
                                    ("two reads of a round apart", "reads_apart", 100, "%"),
                                    ("decode", "tok_s", 1, "token/s")):
        s = result["spread"][key]
        if s:
            count = f" ({s['count']})" if key == "close_share" else ""
            print(f"| {what}{count} | {factor * s['median']:.1f} {unit} | {factor * s['low_quartile']:.1f} to "
                  f"{factor * s['high_quartile']:.1f} | {factor * s['min']:.1f} | {factor * s['max']:.1f} |")
    print(f"\n{result['at_target']} of {result['rounds_done']} rounds at {100 * TARGET:.0f} % or more, "
          f"{result['same_at_target']} of the weights' own memory, {result['huge_bytes'] / GIB:.2f} of "
          f"{result['weights_bytes'] / GIB:.2f} GiB of it on huge pages; "
          f"{result['cpu_bytes_a_step'] / 1e9:.3f} GB of weights a step on {result['threads']} threads of node "
          f"{result['node']} ({result['kernels']}); read over {result['read_bytes'] / GIB:.1f} GiB; "
          f"{result['seconds']:.0f} s")


def read_command_line():
    parser = parser_of(__doc__, 8)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--buffer", default="4GiB")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--json")
    options = parse(parser)
    if options.rounds < 1 or options.output < 1:
        parser.error("--rounds and --output are at least 1")
    if not any(option.split("=")[0] in ("--strategy", "--plan") for option in options.helmd):
        options.helmd += ["--strategy", "thesis"]
    options.requests = 1
    return options


def main():
    options = read_command_line()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="helm-share-") as rundir, Daemon(options, rundir) as daemon:
        report = os.path.join(rundir, "bench.json")
        state = status(options, daemon.endpoint)
        worker = worker_of(state, "cpu")
        if not worker:
            die("this plan has no CPU worker")
        with Reader(options, worker, ["--buffer", options.buffer]) as reader, \
                Reader(options, worker, ["--arena", arena_of(daemon.process.pid)]) as same:
            bench(options, daemon.endpoint, report)  # every page touched, every thread awake once
            rounds, read = [], [reader.gb_s(), same.gb_s()]
            bad = 0
            while not bad and len(rounds) < options.rounds and (not rounds or time.monotonic() - begin < options.seconds):
                try:
                    rounds.append(one_round(options, daemon.endpoint, report, read, (reader, same)))
                    read = [rounds[-1]["read_after_gb_s"], rounds[-1]["same_after_gb_s"]]
                except SystemExit as why:  # said by die(): what went before is reported all the same
                    bad = why.code
            if not rounds:
                sys.exit(bad)
            result = {"rounds_done": len(rounds), "output": options.output, "threads": worker["threads"],
                      "node": worker["numa_node"], "kernels": worker["kernels"], "read_bytes": reader.bytes,
                      "weights_bytes": same.bytes, "huge_bytes": same.huge_bytes,
                      "helmd": options.helmd, "model": options.model, "rounds": rounds}
    result["seconds"] = time.monotonic() - begin
    close = [r["share"] for r in rounds if r["reads_apart"] <= CLOSE_READS]
    result["spread"] = {key: spread([r[key] for r in rounds]) for key in
                        ("share", "same_share", "whole_share", "read_gb_s", "same_gb_s", "decode_gb_s", "whole_gb_s", "reads_apart", "tok_s")}
    result["spread"]["close_share"] = spread(close) if close else None
    result["at_target"] = sum(r["share"] >= TARGET for r in rounds)
    result["same_at_target"] = sum(r["same_share"] >= TARGET for r in rounds)
    result["cpu_bytes_a_step"] = rounds[0]["cpu_bytes"] / rounds[0]["steps"]
    if options.json:  # before the checks: what they refuse can be looked at
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
    print_report(result)
    check_rounds(rounds)
    sys.exit(bad)


if __name__ == "__main__":
    main()
