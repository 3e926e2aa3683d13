#!/usr/bin/env python3
"""Runs test programs and sums up what they printed.

    run.py [--label TEXT] [--timeout SECONDS] [--jobs N] [--alone PATTERN]... [--log-dir DIR] PROGRAM...

A program is a cmocka binary (its "[ PASSED ] N test(s)" lines are counted), or anything that ends with a line
"N passed, N failed[, N skipped]". A program that fails, is killed, times out or reports no test at all is a failure;
its output is printed. Skipped tests are listed and counted. Exit status 1 on any failure. --jobs: so many at once, but
those whose path matches a PATTERN (as of a shell) one at a time, when the others are through."""
import argparse
import concurrent.futures
import fnmatch
import itertools
import os
import re
import subprocess
import sys
import time

PLAIN = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.M)


def count(output):
    plain = PLAIN.findall(output)
    if plain:
        return [sum(int(row[i] or 0) for row in plain) for i in range(3)]
    passed = sum(map(int, re.findall(r"^\[  PASSED  \] (\d+) test\(s\)", output, re.M)))
    failed = sum(map(int, re.findall(r"^\[  FAILED  \] (\d+) test\(s\)", output, re.M)))
    skipped = sum(map(int, re.findall(r"^\[  SKIPPED \] (\d+) test\(s\)", output, re.M)))
    return [passed, failed, skipped]


def run(program, timeout, log_dir):
    started = time.time()
    env = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="stdout")
    try:
        done = subprocess.run([program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=timeout, env=env)
        output, status = done.stdout.decode(errors="replace"), done.returncode
    except subprocess.TimeoutExpired as late:
        output, status = (late.stdout or b"").decode(errors="replace"), f"no end after {timeout} s"
    if log_dir:
        with open(os.path.join(log_dir, program.replace("/", "_") + ".log"), "w") as f:
            f.write(output)
    passed, failed, skipped = count(output)
    trouble = status != 0 or failed or not (passed or skipped)
    return program, passed, max(failed, 1 if trouble else 0), skipped, status, output, time.time() - started


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--label", default="")
    ap.add_argument("--timeout", type=float, default=480)
    ap.add_argument("--jobs", type=int, default=1)
    ap.add_argument("--alone", action="append", default=[])
    ap.add_argument("--log-dir")
    ap.add_argument("programs", nargs="+")
    args = ap.parse_args()
    if args.log_dir:
        os.makedirs(args.log_dir, exist_ok=True)
    total = [0, 0, 0]
    alone = [p for p in args.programs if args.jobs > 1 and any(fnmatch.fnmatch(p, "*/" + a) for a in args.alone)]
    together = [p for p in args.programs if p not in alone]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        results = pool.map(lambda p: run(p, args.timeout, args.log_dir), together)
        later = (run(p, args.timeout, args.log_dir) for p in alone)
        for program, passed, failed, skipped, status, output, seconds in itertools.chain(results, later):
            name = re.sub(r"^.*?(?=tests/)", "", program)
            print(f"{'FAIL' if failed else 'ok  '} {args.label}{name}: {passed} passed, {failed} failed, {skipped} skipped"
                  f" ({seconds:.1f} s)", flush=True)
            for line in re.findall(r"^(?:\[  SKIPPED \] [a-z].*|.*\bskipped?: .*)$", output, re.M | re.I):
                print("     " + line)
            if failed:
                print(f"---- status {status}, last output of {name}:\n" + "\n".join(output.splitlines()[-60:]) + "\n----")
            total = [total[0] + passed, total[1] + failed, total[2] + skipped]
    print(f"{total[0]} passed, {total[1]} failed, {total[2]} skipped")
    return 1 if total[1] or not total[0] else 0


if __name__ == "__main__":
    sys.exit(main())
