#!/usr/bin/env python3
"""Runs test programs of one or several builds in one pool and sums up what they printed.

    run.py [--build DIR] [--jobs N] [--alone PATTERN]... [--longest PATTERN]... [--log-dir DIR] [--timeout SECONDS] TEST...

A TEST is "MODE:PATH [ARGUMENT]...": a program or script of a build, MODE one of release, asan, ... Scripts (.py, .sh)
stand in the source tree, programs in DIR/MODE. A test is a cmocka binary (its "[ PASSED ] N test(s)" lines are counted),
or anything that ends with a line "N passed, N failed[, N skipped]". One that fails, is killed, times out or reports no
test at all is a failure; its output is printed. Exit status 1 on any failure.

A skipped test has printed a line "[NAME ]skipped: REASON", a test of a cmocka binary between its "[ RUN" and its
"[  SKIPPED ]"; one without is a failure. The end of the output lists the failed tests, each with the command that runs it
alone, the number skipped for each reason, the time, and last the sum: "N passed, N failed, N skipped". The times of all
tests go to DIR/logs/times.

--timeout: seconds for a test. While more tasks want to run than there are processors, a second counts as the part of one
that a task gets. HELM_CPU (common/base/cpu.h) is for all tests, and OPENBLAS_CORETYPE then says the same to OpenBLAS.

--jobs: how much runs at once. A test counts as one job; one that matches a --waiting PATTERN (as of a shell, of MODE:PATH),
since it waits for other processes most of the time, as WAITING of one. While processors have nothing to do more is started,
up to --jobs again. Tests that match an --alone PATTERN run one at a time, two of those that wait, when the others are through.
Those that match a --longest PATTERN start first, in the patterns' order, so that none of them is what everything waits for in
the end; tests that wait and tests that do not start in turns, so that both last."""
import argparse
import collections
import fnmatch
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "process"))
import processor  # noqa: E402

PLAIN = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.M)
# cmocka 1.1.7 has a group's name before the numbers of what was skipped and failed
CMOCKA = re.compile(r"^\[ +(RUN|OK|SKIPPED|FAILED) +\] +(?!(?:.+: )?\d+ test\(s\))(\S.*)$")
SKIPPED = re.compile(r"^(.*?)\s*\bskipped: (\S.*)$")
FAILED = re.compile(r"^FAIL(?:ED)?:? +(.+)$")
NAMED = 5  # of a failed program, as many of what failed in it are in the closing list
OWN = ("HELM_BIN", "HELM_PYPROTO", "HELM_TEST_BIN")  # of the environment, what each test has of its own
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
                        # undefined behaviour is a trap (Makefile): a report of where it is
                        ASAN_OPTIONS="handle_sigill=1:" + os.environ.get("ASAN_OPTIONS", ""),
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
        self.failed = max(failed, int(self.status != 0 or not (self.passed or self.skipped)))
        self.reasons, self.wrong = reasons(self.output, self.skipped)
        self.failed += len(self.wrong)
        return self

    def wait(self, process, timeout):
        late, ended = threading.Event(), threading.Event()

        def watch():
            end, step = processor.clock() + timeout, min(LOOK_S, timeout)
            while processor.clock() < end:
                if ended.wait(step):
                    return
            late.set()
            os.kill(process.pid, signal.SIGKILL)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it keeps its number until nothing kills it any more
        ended.set()
        watcher.join()
        _, status, used = os.wait4(process.pid, 0)  # its children's times are in what it used
        process.returncode = os.waitstatus_to_exitcode(status)
        self.cpu = used.ru_utime + used.ru_stime
        if late.is_set():
            return "no end after %g s" % timeout
        return process.returncode if process.returncode >= 0 else "killed by %s" % signal.Signals(-process.returncode).name

    def command(self, build, log_dir):
        """The command that runs it alone, from the folder that this runs in."""
        told = ["%s=%s" % (name, shlex.quote(value)) for name, value in sorted(os.environ.items())
                if name.startswith("HELM_") and name not in OWN]
        where = [] if build == "build" else ["--build", build]
        if log_dir != os.path.join(build, "logs"):
            where += ["--log-dir", log_dir]
        return " ".join(told + list(map(shlex.quote, ["tests/run.py", *where, " ".join([self.key, *self.arguments])])))

    def report(self):
        print("%s %s: %d passed, %d failed, %d skipped (%.1f s, CPU %.1f s)" % (
            "FAIL" if self.failed else "ok  ", self.name, self.passed, self.failed, self.skipped, self.seconds, self.cpu), flush=True)
        for reason, number in self.reasons.items():
            print("     %d skipped: %s" % (number, reason))
        if self.failed:
            print("---- status %s, last output of %s:\n%s\n----" % (self.status, self.name,
                                                                   "\n".join(self.output.splitlines()[-60:])))

    def failures(self):
        """Its failed parts, as far as it says."""
        lines = [CMOCKA.match(line) or FAILED.match(line) for line in self.output.splitlines()]
        named = [m[m.lastindex][:160] for m in lines if m and (m.re is FAILED or m[1] == "FAILED")]
        named = list(dict.fromkeys(named)) + self.wrong
        if self.status not in (0, 1):
            named.insert(0, "status %s" % self.status)
        if not (self.passed or self.skipped or named):
            named = ["it reports no test"]
        return named[:NAMED] + ["and %d more" % (len(named) - NAMED)] * (len(named) > NAMED)


def count(output):
    plain = PLAIN.findall(output)
    if plain:
        return [sum(int(row[i] or 0) for row in plain) for i in range(3)]
    return [sum(map(int, re.findall(r"^\[  %s\] (?:.+: )?(\d+) test\(s\)" % word, output, re.M)))
            for word in ("PASSED  ", "FAILED  ", "SKIPPED ")]


def reasons(output, skipped):
    """How many tests were skipped for which reason, and the tests without one, each as a text."""
    found, wrong, reason, running = collections.Counter(), [], None, False
    cmocka = re.search(r"^\[==========\] ", output, re.M) and not PLAIN.search(output)
    for line in output.splitlines():
        event, said = CMOCKA.match(line), SKIPPED.match(line)
        if event and event[1] == "RUN":
            running, reason = True, None
        elif event and event[1] == "SKIPPED" and running:
            if reason:
                found[reason] += 1
            else:
                wrong.append("%s was skipped without a reason" % event[2])
            running = False
        elif event:
            running = False  # the list at the end has the names of those that were skipped again
        elif said:
            reason = said[2]
            if not cmocka:
                found[reason] += 1
    if found.total() + len(wrong) < skipped:
        wrong.append("%d skipped, %d reasons" % (skipped, found.total()))
    return found, wrong


def place(test, patterns):
    """Which of the patterns comes first that the test matches; their number if none does."""
    return next((i for i, pattern in enumerate(patterns) if fnmatch.fnmatch(test.key, pattern)), len(patterns))


def idle_seconds():
    """Idle seconds of all processors that this may run on, since they started."""
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


def mask_openblas(ap):
    """HELM_CPU for OpenBLAS, which chooses kernels when it is loaded."""
    mask = os.environ.get("HELM_CPU")
    if not mask:
        return
    unknown = [name for name in mask.split(",") if name not in processor.LEFT]
    if unknown:
        ap.error("HELM_CPU=%s: '%s' is none of %s" % (mask, unknown[0], " ".join(processor.LEFT)))
    core = "Nehalem" if mask == "none" else "Haswell" if mask == "avx2" else None
    if core:
        os.environ.setdefault("OPENBLAS_CORETYPE", core)


def write_times(tests, log_dir):
    with open(os.path.join(log_dir, "times"), "w") as f:
        f.write("processor seconds, seconds, test\n")
        for test in sorted(tests, key=lambda t: -t.cpu):
            f.write("%8.1f %8.1f  %s\n" % (test.cpu, test.seconds, test.name))


def in_words(seconds):
    minutes, seconds = divmod(int(seconds + 0.5), 60)
    return "%d min %d s" % (minutes, seconds) if minutes else "%d s" % seconds


def sum_up(tests, args, times, idle):
    """Prints the end; whether all is well."""
    passed, failed, skipped = (sum(getattr(t, what) for t in tests) for what in ("passed", "failed", "skipped"))
    print()
    for test in [t for t in tests if t.failed]:
        print("failed: %s: %s" % (test.name, "; ".join(test.failures())))
        print("  log:   %s" % os.path.relpath(test.log_path(args.log_dir)))
        print("  alone: %s" % test.command(args.build, args.log_dir))
    why = sum((t.reasons for t in tests), collections.Counter())
    for reason, number in why.most_common():
        print("%d skipped: %s" % (number, reason))
    print("took %s (one after another %s); processors idle for %s of each; processor time %s%s" % (
        in_words(times[-1] - times[0]), in_words(times[2] - times[1]), in_words(idle), in_words(sum(t.cpu for t in tests)),
        ", of each test in " + os.path.relpath(os.path.join(args.log_dir, "times")) if len(tests) > 1 else ""))
    if os.environ.get("HELM_CPU"):
        print("HELM_CPU=%s" % os.environ["HELM_CPU"])
    print("%d passed, %d failed, %d skipped" % (passed, failed, skipped), flush=True)
    return passed and not failed


def main():
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell starts it so with `&`, and tests interrupt programs
        signal.signal(signal.SIGINT, signal.default_int_handler)
    ap = argparse.ArgumentParser()
    ap.add_argument("--build", default="build")
    ap.add_argument("--timeout", type=float, default=480)
    ap.add_argument("--jobs", type=float, default=1)
    ap.add_argument("--waiting", action="append", default=[])
    ap.add_argument("--alone", action="append", default=[])
    ap.add_argument("--longest", action="append", default=[])
    ap.add_argument("--log-dir")
    ap.add_argument("tests", nargs="+")
    args = ap.parse_args()
    args.log_dir = args.log_dir or os.path.join(args.build, "logs")
    mask_openblas(ap)
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
    if len(tests) > 1:
        write_times(tests, args.log_dir)
    idle = (idle_seconds() - used) / len(os.sched_getaffinity(0))
    return 0 if sum_up(tests, args, times, idle) else 1


if __name__ == "__main__":
    sys.exit(main())
