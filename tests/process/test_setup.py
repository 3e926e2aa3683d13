#!/usr/bin/env python3
"""The output of `make demo` while it builds, and of `make` where packages are missing.

  test_setup.py [WORD]...          tests whose names have one of the words"""
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
PROGRESS = os.path.join(ROOT, "tools/demo/build-progress.sh")
SETUP = os.path.join(ROOT, "tools/setup.sh")
counts = {True: 0, False: 0}


def check(name, ok, detail=""):
    counts[bool(ok)] += 1
    print("%s %s%s" % ("ok  " if ok else "FAIL", name, "" if ok else "  [%s]" % (detail,)), flush=True)


def progress_of_a_slow_build():
    """Lines come while the build's own output stands still in the middle of a line."""
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log")
        show = subprocess.Popen([PROGRESS, "3", log], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=0)
        said = [show.stderr.readline()]
        show.stdin.write("  CC    one.c\nnote: no step\n  CC    tw")
        said += [show.stderr.readline() for _ in range(3)]  # the pipe is open and nothing comes: each line is a heartbeat
        with open(log) as f:
            early = f.read()
        show.stdin.write("o.c\n  LINK  all")
        show.stdin.close()
        said += show.stderr.readlines()
        status = show.wait()
        with open(log) as f:
            whole = f.read()
    check("progress: the number of steps comes first", said[0] == "building HELM: 3 steps\n", said)
    check("progress: a silent build still shows lines", all(s.startswith("  1 of 3: CC one.c") for s in said[1:4]), said)
    check("progress: the log has each line at once", early == "  CC    one.c\nnote: no step\n", early)
    check("progress: the log has a last line without an end", whole.endswith("  CC    two.c\n  LINK  all\n"), whole)
    check("progress: it ends with 0", status == 0, status)


def progress_of_nothing():
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([PROGRESS, "0", os.path.join(folder, "log")], input="make: nothing to do\n", capture_output=True, text=True)
    check("progress: a build without steps shows nothing", (done.returncode, done.stderr) == (0, ""), done)


def look(path, cc):
    return subprocess.run(["/bin/bash", SETUP, "look"], env={"PATH": path, "CC": cc}, capture_output=True, text=True)


def packages_missing():
    """A PATH with the shell's own needs, and with a compiler that finds no header."""
    with tempfile.TemporaryDirectory() as folder:
        for tool in ("dpkg-query", "apt-get"):
            if shutil.which(tool):
                os.symlink(shutil.which(tool), os.path.join(folder, tool))
        done = look(folder, "gcc")
        check("set-up: names a missing compiler and tool", done.returncode == 1 and "missing: gcc protoc-c\n" in done.stderr, done)
        command = "`make setup`" if shutil.which("apt-get") else "install what these Debian packages hold"
        check("set-up: names the command that helps", command in done.stderr, done)
        with open(os.path.join(folder, "nocc"), "w") as f:
            f.write("#!/bin/sh\nexit 1\n")
        os.chmod(os.path.join(folder, "nocc"), 0o755)
        done = look(folder + ":" + os.environ["PATH"], "nocc -m64")
        check("set-up: names missing headers, not the compiler", done.returncode == 1 and "missing: zmq.h " in done.stderr, done)
    done = look(os.environ["PATH"], os.environ.get("CC", "gcc"))
    check("set-up: where all is there it says nothing", (done.returncode, done.stderr) == (0, ""), done)


def main():
    tests = (progress_of_a_slow_build, progress_of_nothing, packages_missing)
    for test in tests:
        if len(sys.argv) < 2 or any(word in test.__name__ for word in sys.argv[1:]):
            test()
    print("%d passed, %d failed" % (counts[True], counts[False]))
    return counts[False] > 0


if __name__ == "__main__":
    sys.exit(main())
