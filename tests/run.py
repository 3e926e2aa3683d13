#!/usr/bin/env python3
"""Runs test programs of one or several builds in one pool and sums up what they printed.

    run.py --build DIR [--jobs N] [--alone PATTERN]... [--longest PATTERN]... [--log-dir DIR] [--timeout SECONDS] TEST...

A TEST is "MODE:PATH [ARGUMENT]...": a program or script of a build, MODE one of release, asan, ... Scripts (.py, .sh)
stand in the source tree, programs in DIR/MODE. A test is a cmocka binary (its "[ PASSED ] N test(s)" lines are counted),
or anything that ends with a line "N passed, N failed[, N skipped]". One that fails, is killed, times out or reports no
test at all is a failure; its output is printed. Skipped tests are listed and counted. Exit status 1 on any failure.

--jobs: how many run at once. Tests that match an --alone PATTERN (as of a shell, of MODE:PATH) run one at a time, when
the others are through. Those that match a --longest PATTERN start first, in the patterns' order, so that none of them is
what everything waits for in the end. The tests that took the most processor time are listed at the end."""
import argparse
import concurrent.futures
import fnmatch
import itertools
import os
import re
import subprocess
import sys
import threading
import time

PLAIN = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.M)
SLOWEST = 12


class Test:
    """One line of the command: what is run, and what came of it."""

    def __init__(self, text, build):
        self.mode, _, command = text.partition(":")
        path, *self.arguments = command.split()
        self.key = "%s:%s" % (self.mode, path)
        self.name = " ".join([self.mode, path, *self.arguments])
        folder = os.path.abspath(os.path.join(build, self.mode))
        self.program = os.path.abspath(path) if path.endswith((".py", ".sh")) else os.path.join(folder, path)
        self.env = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="stdout", HELM_TEST_BIN=os.path.join(folder, "tests/process"),
                        HELM_PYPROTO=os.path.join(folder, "pyproto"),
                        HELM_BIN=os.path.abspath(os.path.join(build, "bin")) if self.mode == "release" else
                        os.path.join(folder, "bin"))

    def log_path(self, log_dir):
        return os.path.join(log_dir, re.sub(r"[^\w.,-]+", "_", self.name) + ".log")

    def run(self, timeout, log_dir):
        started = time.monotonic()
        late = threading.Event()
        with open(self.log_path(log_dir), "w+", errors="replace") as log:
            process = subprocess.Popen([self.program, *self.arguments], stdin=subprocess.DEVNULL, stdout=log,
                                       stderr=subprocess.STDOUT, env=self.env)
            timer = threading.Timer(timeout, lambda: (late.set(), os.kill(process.pid, 9)))
            timer.start()
            _, status, used = os.wait4(process.pid, 0)  # its children's times are in what it used
            timer.cancel()
            process.returncode = os.waitstatus_to_exitcode(status)
            log.seek(0)
            self.output = log.read()
        self.status = "no end after %g s" % timeout if late.is_set() else process.returncode
        self.seconds, self.cpu = time.monotonic() - started, used.ru_utime + used.ru_stime
        self.passed, failed, self.skipped = count(self.output)
        self.failed = max(failed, self.status != 0 or not (self.passed or self.skipped))
        return self

    def report(self):
        print("%s %s: %d passed, %d failed, %d skipped (%.1f s, CPU %.1f s)" % (
            "FAIL" if self.failed else "ok  ", self.name, self.passed, self.failed, self.skipped, self.seconds, self.cpu), flush=True)
        for line in re.findall(r"^(?:\[  SKIPPED \] [a-z].*|.*\bskipped?: .*)$", self.output, re.M | re.I):
            print("     " + line)
        if self.failed:
            print("---- status %s, last output of %s:\n%s\n----" % (self.status, self.name,
                                                                   "\n".join(self.output.splitlines()[-60:])))


def count(output):
    plain = PLAIN.findall(output)
    if plain:
        return [sum(int(row[i] or 0) for row in plain) for i in range(3)]
    return [sum(map(int, re.findall(r"^\[  %s\] (\d+) test\(s\)" % word, output, re.M)))
            for word in ("PASSED  ", "FAILED  ", "SKIPPED ")]


def place(test, patterns):
    """Which of the patterns comes first that the test matches; their number if none does."""
    return next((i for i, pattern in enumerate(patterns) if fnmatch.fnmatch(test.key, pattern)), len(patterns))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--build", default="build")
    ap.add_argument("--timeout", type=float, default=480)
    ap.add_argument("--jobs", type=int, default=1)
    ap.add_argument("--alone", action="append", default=[])
    ap.add_argument("--longest", action="append", default=[])
    ap.add_argument("--log-dir", required=True)
    ap.add_argument("tests", nargs="+")
    args = ap.parse_args()
    os.makedirs(args.log_dir, exist_ok=True)
    tests = sorted((Test(text, args.build) for text in args.tests), key=lambda t: place(t, args.longest))
    alone = [t for t in tests if place(t, args.alone) < len(args.alone)]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        running = [pool.submit(t.run, args.timeout, args.log_dir) for t in tests if t not in alone]
        later = (t.run(args.timeout, args.log_dir) for t in alone)
        for test in itertools.chain((f.result() for f in concurrent.futures.as_completed(running)), later):
            test.report()
    print("most processor time, of %.0f s in all:" % sum(t.cpu for t in tests))
    for test in sorted(tests, key=lambda t: -t.cpu)[:SLOWEST]:
        print("  %6.1f s  (%.1f s long)  %s" % (test.cpu, test.seconds, test.name))
    passed, failed, skipped = (sum(getattr(t, what) for t in tests) for what in ("passed", "failed", "skipped"))
    print("%d passed, %d failed, %d skipped" % (passed, failed, skipped))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
