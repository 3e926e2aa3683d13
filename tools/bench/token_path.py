#!/usr/bin/env python3
"""Where the time of one token goes, from the client and back: a table in microseconds.

  token_path.py --bin DIR --model DIR [--output N] [--requests N] [-- helmd options]

Starts helmd, lets helm-bench decode at batch 1 through its socket, and takes the difference of helmd's own counters
before and after (steps, each worker's busy and waiting seconds): means over all steps. Prompts are
one token long, so that their steps are like the others. Outside the workers: the time of all tokens at the client, by
their number, less that of the worker that took longest.
Standard library only. Exit status: 0; 5 something failed."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

PROMPT = 1


def die(text):
    print(f"{os.path.basename(sys.argv[0])}: {text}", file=sys.stderr)
    sys.exit(5)


def last_lines(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return "\n".join(file.read().splitlines()[-5:])


class Daemon:
    """A private helmd; `with` ends it. The same prompts are sent again and again, so it computes all of them."""

    def __init__(self, options, rundir, prefix_cache="off"):
        self.log = os.path.join(rundir, "helmd.log")
        read, write = os.pipe()
        program = os.path.join(options.bin, "helmd")
        command = [program, "--model", options.model, "--rundir", rundir, "--ready-fd", str(write)] + options.helmd
        if "--prefix-cache" in subprocess.run([program, "--help"], capture_output=True, text=True).stdout:
            command += ["--prefix-cache", prefix_cache]  # older builds have none
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, pass_fds=[write], stdout=log, stderr=log)
        os.close(write)
        with os.fdopen(read, encoding="utf-8") as ready:
            words = ready.readline().split()
        if len(words) < 2 or words[0] != "ready":
            self.process.wait()
            die(f"helmd: {' '.join(words)}\n{last_lines(self.log)}")
        self.endpoint = words[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def status(options, endpoint):
    command = [os.path.join(options.bin, "helm-cli"), "--connect", endpoint, "status", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        die(f"helm-cli status: {done.stderr.strip()}")
    return json.loads(done.stdout)


def bench(options, endpoint, report, more=()):
    """helm-bench's cell; `more`: options instead of one-token prompts without a warm-up."""
    if not more:
        more = ("--prompt", str(PROMPT), "--output", str(options.output), "--requests", str(options.requests), "--warmup", "0")
    command = [os.path.join(options.bin, "helm-bench"), "--connect", endpoint, *more, "--rounds", "1", "--read-buffer", "0",
               "--json", report]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        die(f"helm-bench: {done.stderr.strip() or done.stdout.strip()}")
    with open(report, encoding="utf-8") as file:
        return json.load(file)["cells"][0]


def rows_of(before, after, cell):
    """(what, microseconds a step) in the order of the way."""
    steps = after["steps_total"] - before["steps_total"]

    def mean(old, new, key):
        return 1e6 * (new[key] - old[key]) / steps

    client = 1e6 / cell["throughput_tok_s"]["p50"]
    workers = {new["name"]: (mean(old, new, "busy_seconds"), mean(old, new, "wait_seconds"))
               for old, new in zip(before["workers"], after["workers"])}
    mean_bytes = {new["name"]: (new["weight_bytes_read"] - old["weight_bytes_read"]) / steps
                  for old, new in zip(before["workers"], after["workers"]) if "weight_bytes_read" in new}
    longest = max(busy + wait for busy, wait in workers.values())
    rows = [("outside the workers: token streamed, next step formed, doorbells there and back", client - longest)]
    for name, (busy, wait) in workers.items():
        rows.append((f"{name} worker: computing", busy))
        if len(workers) > 1:
            rows.append((f"{name} worker: waiting for the other's hand-over", wait))
        read = mean_bytes.get(name)
        if read and busy > 0:
            rows.append((f"  its weights as they lie there, {read / 1e9:.3f} GB a step, in GB/s while it computes", read / 1e3 / busy))
    for key, what in (("seconds_linear", "linears"), ("seconds_attention", "attention"),
                      ("seconds_sample", "sampling")):
        rows.append((f"  of the worker with the head: {what}", mean(before, after, key)))
    return rows, steps, client


def parser_of(doc, output):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--output", type=int, default=output)
    return parser


def parse(parser):
    """The command line; what is behind -- goes to helmd."""
    argv, helmd = sys.argv[1:], []
    if "--" in argv:
        at = argv.index("--")
        argv, helmd = argv[:at], argv[at + 1:]
    options = parser.parse_args(argv)
    options.helmd = helmd
    return options


def read_options(doc, output, requests):
    parser = parser_of(doc, output)
    parser.add_argument("--requests", type=int, default=requests)
    return parse(parser)


def main():
    options = read_options(__doc__, 512, 3)
    with tempfile.TemporaryDirectory(prefix="helm-path-") as rundir, Daemon(options, rundir) as daemon:
        report = os.path.join(rundir, "bench.json")
        bench(options, daemon.endpoint, report)  # every page touched, every thread awake once
        before = status(options, daemon.endpoint)
        cell = bench(options, daemon.endpoint, report)
        after = status(options, daemon.endpoint)
    rows, steps, client = rows_of(before, after, cell)
    print(f"| step of one token's way | us |\n| --- | --- |")
    for what, us in rows:
        print(f"| {what} | {us:.1f} |")
    print(f"| token to token, at the client, mean | {client:.1f} |")
    print(f"\n{steps} steps; {', '.join(w['name'] + ' ' + (w['device'] or w['kernels']) for w in after['workers'])}")


if __name__ == "__main__":
    main()
