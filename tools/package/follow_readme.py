#!/usr/bin/env python3
"""Runs the commands of README.md's first two sections in a root, as they stand there. Called by test-readme.sh, as root.

  follow_readme.py ROOT FOLDER          FOLDER: HELM's checkout within ROOT

A command that this does not know how to judge is a failure, so that README cannot get one that is not tried. Exit status: 0, 1."""
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../tests/process"))
from fake_hub import Hub  # noqa: E402

SECTIONS = ("## Try it", "## The first real model")
counts = {True: 0, False: 0}


def check(name, ok, detail=""):
    counts[bool(ok)] += 1
    print("%s %s%s" % ("ok  " if ok else "FAIL", name, "" if ok else "  [%s]" % (str(detail)[-2000:],)), flush=True)


def commands(text):
    """Of the code blocks of SECTIONS: each line before a comment; of a block with a prompt only what is behind `$`."""
    for section in SECTIONS:
        part = text[text.index(section + "\n"):]
        part = part[:part.index("\n## ", 4)]
        for block in re.findall(r"^```\n(.*?)^```$", part, re.S | re.M):
            lines = block.splitlines()
            shown = [line[2:] for line in lines if line.startswith("$ ")]
            for line in shown or lines:
                yield re.sub(r"\s+#.*", "", line)


class Root:
    def __init__(self, root, folder, hub):
        self.root, self.folder, self.hub, self.kept = root, folder, hub, []

    def command(self, text):
        inner = "cd %s && export PATH=$PWD/build/bin:$PATH && %s" % (self.folder, text)
        return ["chroot", self.root, "env", "-i", "HOME=/root", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8",
                "DEBIAN_FRONTEND=noninteractive", "HF_ENDPOINT=" + self.hub.url, "sh", "-c", inner]

    def run(self, text, said=""):
        begin = time.monotonic()
        done = subprocess.run(self.command(text), input=said, capture_output=True, text=True, timeout=3600)
        return done.returncode, done.stdout, done.stderr, time.monotonic() - begin

    def start(self, text):
        log = open("%s/started.%d.log" % (self.root, len(self.kept)), "w+")
        self.kept.append((subprocess.Popen(self.command("exec " + text), stdin=subprocess.DEVNULL, stdout=log, stderr=log), log))
        return self.kept[-1]

    def end(self):
        statuses = []
        for process, _ in reversed(self.kept):
            process.send_signal(signal.SIGTERM)
            statuses.append(process.wait(30))
        return statuses


def until(what, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if what():
                return True
        except OSError:
            pass
        time.sleep(0.5)
    return False


def offer(root, name):
    """The demo model as a GGUF file under the name that README pulls."""
    status, _, err, _ = root.run("helm-quantize --model tools/models/demo --to Q8_0 --out /tmp/offered.gguf")
    check("a file for the hub", status == 0, err)
    repo, file = name.rsplit("/", 1)
    with open(root.root + "/tmp/offered.gguf", "rb") as f:
        root.hub.repos[repo] = {file: f.read()}


def follow(root, line):
    words = line.split()
    said = "And it came to pass\n/bye\n" if words[-1] == "chat" else ""
    program = os.path.basename(words[0])
    if program in ("helmd", "helm-gateway"):
        process, log = root.start(line)
        if program == "helmd":
            up = until(lambda: root.run("build/bin/helm-cli status")[0] == 0, 300)
        else:
            up = until(lambda: urllib.request.urlopen("http://localhost:8080/health").status == 200, 60)
        log.seek(0)
        return check(line, up and process.poll() is None, log.read())
    if "pull" in words:
        offer(root, words[-1])
    status, out, err, took = root.run(line, said)
    shown = {"make": "built: ", "helm-plan": "token/s", "helm-cli": ""}.get(program)
    if line == "make demo":
        shown = "token/s"
    check("%s  (%.0f s)" % (line, took), shown is not None and status == 0 and shown in out + err and out.strip(), (status, out, err))


def main():
    checkout = sys.argv[1] + sys.argv[2]
    with open(os.path.join(checkout, "README.md")) as f:
        lines = list(commands(f.read()))
    check("README has commands", len(lines) >= 9 and lines[0] == "make demo", lines)
    hub = Hub()
    root = Root(sys.argv[1], sys.argv[2], hub)
    try:
        for line in lines:
            follow(root, line)
    finally:
        statuses = root.end()
        hub.close()
    check("what was started ends with 0", len(statuses) == 2 and not any(statuses), statuses)
    print("%d passed, %d failed" % (counts[True], counts[False]))
    return counts[False] > 0


if __name__ == "__main__":
    sys.exit(main())
