#!/usr/bin/env python3
"""Runs test programs of one or several builds in one pool and sums up what they printed.

    run.py --build DIR [--jobs N] [--alone PATTERN]... [--longest PATTERN]... [--log-dir DIR] [--timeout SECONDS] TEST...

A TEST is "MODE:PATH [ARGUMENT]...": a program or script of a build, MODE one of release, asan, ... Scripts (.py, .sh)
stand in the source tree, programs in DIR/MODE. A test is a cmocka binary (its "[ PASSED ] N test(s)" lines are counted),
or anything that ends with a line "N passed, N failed[, N skipped]". One that fails, is killed, times out or reports no
test at all is a failure; its output is printed. Skipped tests are listed and counted. Exit status 1 on any failure.

--jobs: how much runs at once. A test counts as one job; one that matches a --waiting PATTERN (as of a shell, of MODE:PATH),
since it waits for other processes most of the time, as WAITING of one. While processors have nothing to do more is started,
up to --jobs again. Tests that match an --alone PATTERN run one at a time, two of those that wait, when the others are through. Those that match a --longest PATTERN start first, in the patterns' order, so that none
of them is what everything waits for in the end; tests that wait and tests that do not start in turns, so that both last.
The tests that took the most processor time are listed at the end."""
import argparse
import fnmatch
import os
import queue
import re
import subprocess
import sys
import threading
import time

PLAIN = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.M)
SLOWEST = 12
WAITING = 0.4
LOOK_S = 1.0


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
        started, self.cpu = time.monotonic(), 0
        with open(self.log_path(log_dir), "w+", errors="replace") as log:
            try:
                self.status = self.wait(subprocess.Popen([self.program, *self.arguments], stdin=subprocess.DEVNULL, stdout=log,
                                                         stderr=subprocess.STDOUT, env=self.env), timeout)
            except OSError as e:
                self.status = str(e)
            log.seek(0)
            self.output = log.read()
        self.seconds = time.monotonic() - started
        self.passed, failed, self.skipped = count(self.output)
        self.failed = max(failed, self.status != 0 or not (self.passed or self.skipped))
        return self

    def wait(self, process, timeout):
        late = threading.Event()
        timer = threading.Timer(timeout, lambda: (late.set(), os.kill(process.pid, 9)))
        timer.start()
        _, status, used = os.wait4(process.pid, 0)  # its children's times are in what it used
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        self.cpu = used.ru_utime + used.ru_stime
        return "no end after %g s" % timeout if late.is_set() else process.returncode

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


def idle_seconds():
    """Of all processors this may run on, since they started."""
    mine = {"cpu%d" % cpu for cpu in os.sched_getaffinity(0)}
    with open("/proc/stat") as f:
        rows = [line.split() for line in f if line.startswith("cpu")]
    return sum(int(row[4]) + int(row[5]) for row in rows if row[0] in mine) / os.sysconf("SC_CLK_TCK")


class Pool:
    """Starts tests as long as what runs comes to no more than `jobs`, and `more` where processors have nothing to do: of those
    that wait and of those that do not whichever has had less of it so far. The two queues are in the order given."""

    def __init__(self, jobs, more, busy, waiting):
        self.free, self.more, self.extra, self.queues, self.given = jobs, more, 0, [busy, waiting], [0, 0]
        self.most = int((jobs + more) / WAITING)
        self.changed, self.through = threading.Condition(), queue.Queue()

    def watch(self):
        """Lets a test that waits more run after a second in which processors were idle for an eighth, one less after a busy one."""
        processors, before, at = len(os.sched_getaffinity(0)), idle_seconds(), time.monotonic()
        while any(self.queues):
            time.sleep(LOOK_S)
            now, idle = time.monotonic(), idle_seconds()
            part, before, at = (idle - before) / (now - at) / processors, idle, now
            step = part > 1 / 8 and (self.extra + 1) * WAITING <= self.more or -(part < 1 / 32 and self.extra > 0)
            with self.changed:
                self.extra += step
                self.free += step * WAITING
                self.changed.notify_all()

    def next(self):
        """(test, its share), or None when there is no more; waits until one fits."""
        with self.changed:
            while any(self.queues):
                for which in sorted((w for w in (0, 1) if self.queues[w]), key=lambda w: self.given[w]):
                    share = (1, WAITING)[which]
                    if share <= self.free + 1e-9:
                        self.free -= share
                        self.given[which] += share
                        return self.queues[which].pop(0), share
                self.changed.wait()
            return None

    def work(self, run):
        while (taken := self.next()):
            test, share = taken
            try:
                self.through.put(run(test))
            except Exception as failure:  # of this script
                self.through.put(failure)
            with self.changed:
                self.free += share
                self.changed.notify_all()

    def run(self, run):
        """Each test as it is through."""
        count = sum(map(len, self.queues))
        threads = [threading.Thread(target=self.work, args=(run,), daemon=True) for _ in range(self.most)]
        if self.more:
            threads.append(threading.Thread(target=self.watch, daemon=True))
        for thread in threads:
            thread.start()
        for _ in range(count):
            through = self.through.get()
            if isinstance(through, Exception):
                raise through
            yield through


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--build", default="build")
    ap.add_argument("--timeout", type=float, default=480)
    ap.add_argument("--jobs", type=float, default=1)
    ap.add_argument("--waiting", action="append", default=[])
    ap.add_argument("--alone", action="append", default=[])
    ap.add_argument("--longest", action="append", default=[])
    ap.add_argument("--log-dir", required=True)
    ap.add_argument("tests", nargs="+")
    args = ap.parse_args()
    os.makedirs(args.log_dir, exist_ok=True)
    tests = sorted((Test(text, args.build) for text in args.tests), key=lambda t: place(t, args.longest))
    alone = [t for t in tests if place(t, args.alone) < len(args.alone)]
    together = [t for t in tests if t not in alone]
    times, used = [time.monotonic()], idle_seconds()
    for jobs, more, part in (args.jobs, args.jobs / 2, together), (1, 0, alone):
        waiting = [t for t in part if place(t, args.waiting) < len(args.waiting)]
        pool = Pool(jobs, more, [t for t in part if t not in waiting], waiting)
        for test in pool.run(lambda t: t.run(args.timeout, args.log_dir)):
            test.report()
        times.append(time.monotonic())
    print("together %.0f s, alone %.0f s; processors idle for %.0f s of each" % (
        times[1] - times[0], times[2] - times[1], (idle_seconds() - used) / len(os.sched_getaffinity(0))))
    print("most processor time, of %.0f s in all:" % sum(t.cpu for t in tests))
    for test in sorted(tests, key=lambda t: -t.cpu)[:SLOWEST]:
        print("  %6.1f s  (%.1f s long)  %s" % (test.cpu, test.seconds, test.name))
    passed, failed, skipped = (sum(getattr(t, what) for t in tests) for what in ("passed", "failed", "skipped"))
    print("%d passed, %d failed, %d skipped" % (passed, failed, skipped))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
