#!/usr/bin/env python3
"""The gap between two steps, in microseconds: medians of single steps, which other programs on the machine disturb less
than the means of token_path.py.

  token_gap.py --bin DIR --model DIR [--output N] [--requests N] [-- helmd options]

Puts uprobes (perf, so as root) where a worker rings that a step is done, where it begins the next one and where helmd rings
a further one, lets helm-bench decode at batch 1 and prints quantiles of: a worker's end of a step to its next beginning (helmd
rings steps while others are computed, so this is the worker's own), done to rung (helmd's turn, beside the next step), and the
step. Each probe adds one or two microseconds. The probes are removed again.
Standard library only. Exit status: 0; 5 something failed."""
import os
import re
import signal
import subprocess
import tempfile
import time

from token_path import Daemon, bench, die, read_options

GROUP = "helm_gap"
# event, program, function
PROBES = (("ring", "helmd", "doorbell_ring"), ("done_cpu", "helm-worker-cpu", "doorbell_ring"),
          ("done_gpu", "helm-worker-gpu", "doorbell_ring"), ("begin_cpu", "helm-worker-cpu", "engine_step_of"),
          ("begin_gpu", "helm-worker-gpu", "engine_step_of"))


def add_probes(folder):
    for event, program, function in PROBES:
        path = os.path.realpath(os.path.join(folder, program))
        done = subprocess.run(["perf", "probe", "-q", "-x", path, "--add", f"{GROUP}:{event}={function}"],
                              capture_output=True, text=True)
        if done.returncode:
            die(f"perf probe: {done.stderr.strip()}")


def remove_probes():
    subprocess.run(["perf", "probe", "-q", "--del", f"{GROUP}:*"], capture_output=True)


def record(options, rundir):
    """Lines of perf script: time and event of every probe that was passed."""
    data, report = os.path.join(rundir, "perf.data"), os.path.join(rundir, "bench.json")
    with Daemon(options, rundir) as daemon:
        bench(options, daemon.endpoint, report)  # every page touched, every thread awake once
        perf = subprocess.Popen(["perf", "record", "-q", "-a", "-k", "CLOCK_MONOTONIC", "-o", data, "-e", f"{GROUP}:*"],
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        time.sleep(1)
        bench(options, daemon.endpoint, report)
        perf.send_signal(signal.SIGINT)
        perf.wait()
    done = subprocess.run(["perf", "script", "-i", data, "-F", "time,event", "--ns"], capture_output=True, text=True)
    return done.stdout.splitlines()


def gaps_of(lines):
    """Lists: a worker's done to its next begun, the last done to rung, begun to done."""
    between, helmd, steps = [], [], []
    done, begun, last = {}, {}, None
    for line in lines:
        found = re.search(r"(\d+\.\d+): +\w+:(\w+):", line)
        if not found:
            continue
        at, event = float(found[1]) * 1e6, found[2]
        kind, _, worker = event.partition("_")
        if kind == "done":
            done[worker] = last = at  # of a worker's rings, and of two workers, the last one counts
        elif kind == "ring" and last is not None:
            helmd.append(at - last)
            last = None
        elif kind == "begin":
            if worker in done and worker in begun and done[worker] > begun[worker]:
                between.append(at - done[worker])
                steps.append(done[worker] - begun[worker])
            begun[worker] = at
    return between, helmd, steps


def quantile(values, q):
    return sorted(values)[int(q * (len(values) - 1))]


def main():
    options = read_options(__doc__, 400, 2)
    remove_probes()
    add_probes(options.bin)
    try:
        with tempfile.TemporaryDirectory(prefix="helm-gap-") as rundir:
            parts = gaps_of(record(options, rundir))
    finally:
        remove_probes()
    if not all(parts):
        die("no step was seen")
    print("| us | 10 % | 25 % | median | 75 % | 90 % |\n| --- | --- | --- | --- | --- | --- |")
    for what, values in zip(("a worker is done, it begins the next step", "the last worker is done, helmd rings a further step",
                             "begun, done"), parts):
        print(f"| {what} | " + " | ".join(f"{quantile(values, q):.1f}" for q in (0.1, 0.25, 0.5, 0.75, 0.9)) + " |")
    print(f"\n{len(parts[2])} steps, of each worker")


if __name__ == "__main__":
    main()
