"""Helpers of the tests of helm-cli: running it, on a terminal of its own too, checking what came, counting.

Used by test_cli*.py and test_client.py. HELM_BIN: folder of the programs.
"""
import fcntl
import os
import pty
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time

import processor

CLI = os.path.abspath(os.path.join(os.environ["HELM_BIN"], "helm-cli"))
MODEL = os.path.abspath("tests/data/golden/qwen3")  # for its tokenizer.json
PROFILE = os.path.abspath("tests/data/profiles/described.json")  # nothing is measured for it
TEMPLATE = ("{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}[assistant]{% endif %}")
counts, skipped = {True: 0, False: 0}, 0


def check(name, ok, detail=""):
    counts[bool(ok)] += 1
    print("%s %s%s" % ("ok  " if ok else "FAIL", name, "" if ok else ("  [%s]" % (detail,))[:2000]), flush=True)


def skip(name, reason):
    global skipped
    skipped += 1
    print("%s skipped: %s" % (name, reason), flush=True)


def sum_up():
    print("%d passed, %d failed, %d skipped" % (counts[True], counts[False], skipped))
    sys.exit(1 if counts[False] else 0)


def run_in_folder(*tests):
    """Each with a folder that all of them share and that goes with them; then the sum, by which the program ends."""
    folder = tempfile.mkdtemp(prefix="helm-test-cli-")
    try:
        for test in tests:
            test(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sum_up()


def cli(*args, stdin=None, env=None, program=CLI, timeout=30):
    run = processor.run([program, *args], timeout, input=stdin, capture_output=True, env=dict(os.environ, **(env or {})))
    return run.returncode, run.stdout.decode(), run.stderr.decode()


def check_exit(name, want, *args, text=None, **more):
    code, out, err = cli(*args, **more)
    check(name, code == want and (text is None or text in out + err), (code, out[-300:], err[-300:]))
    return out


class Terminal:
    """helm-cli on a terminal of its own."""

    def __init__(self, *args, program=CLI, env=None, columns=80):
        pid, self.fd = pty.fork()
        if pid == 0:
            os.execve(program, [program, *args], dict(os.environ, **(env or {})))
        self.pid, self.seen, self.all = pid, "", ""
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def take(self):
        came = os.read(self.fd, 4096).decode(errors="replace")
        self.seen += came
        self.all += came

    def expect(self, text, seconds=60):
        until = processor.clock() + seconds
        while text not in self.seen and processor.clock() < until:
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.take()
                except OSError:
                    break
        found = text in self.seen
        self.seen = self.seen[self.seen.index(text) + len(text):] if found else self.seen
        return found

    def type(self, data):
        """In pieces, what comes back read meanwhile: a terminal's two directions are bounded."""
        while data:
            ready = select.select([self.fd], [self.fd], [], 10)
            if ready[0]:
                self.take()
            if ready[1]:
                data = data[os.write(self.fd, data[:512]):]

    def wait(self):
        status = os.waitpid(self.pid, 0)[1]
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)
