#!/usr/bin/python3
"""Output of the programs and of helm-cli's commands that is not read to its end, and the width of their help.

HELM_BIN: folder of the programs; HELM_PYPROTO: where protoc's Python output lies. Run from the repository's root."""
import os
import signal
import subprocess
import sys

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "tests/process"]
import processor  # noqa: E402
from cli_harness import CLI, MODEL, PROFILE, check, cli, run_in_folder  # noqa: E402
from fake_helmd import FakeDaemon  # noqa: E402

BIN = os.path.dirname(CLI)


def programs():
    """The arguments that print each program's and each command's help."""
    found = [(path,) for path in sorted(os.path.join(BIN, n) for n in os.listdir(BIN) if not n.startswith("helm-test-"))
             if os.access(path, os.X_OK)]
    listed = cli("--print-options")[1].splitlines()
    return found + [(CLI, line.split("\t")[0]) for line in listed if not line.startswith("-") and not line.startswith("help\t")]


def help_tests(_):
    commands = programs()
    check("every program and command is looked at", len(commands) > 25 and (CLI, "pull") in commands, commands)
    for command in commands:
        code, out, err = cli(*command[1:], "--help", program=command[0])
        wide = [line for line in out.splitlines() if len(line) > 100]
        check("%s --help keeps to 100 columns" % " ".join([os.path.basename(command[0]), *command[1:]]),
              code == 0 and out.startswith("usage: ") and not wide, (code, wide, err))


def unread(*command, ignored=False):
    """Its output is not read. Returns its standard error and its status."""
    read, write = os.pipe()
    os.close(read)
    p = subprocess.Popen(command, stdout=write, stderr=subprocess.PIPE, restore_signals=not ignored)
    os.close(write)
    return processor.finish(p, 60)[1].decode(), p.returncode


def pipe_tests(folder):
    endpoint = "ipc://%s/pipe.sock" % folder
    daemon = FakeDaemon(endpoint, MODEL)
    daemon.start()
    outputs = [(*command, "--help") for command in programs()]
    outputs += [(CLI, "--connect", endpoint, *words) for words in
                (("status",), ("plan",), ("metrics",), ("ps",), ("top", "--once", "--interval", "0.1"),
                 ("generate", "--tokens", "10", "-n", "3"), ("run", "Hi"), ("help",))]
    outputs += [(CLI, "--model", MODEL, "tokenize", "Hi"), (CLI, "--model", MODEL, "detokenize", "100"),
                (BIN + "/helm-inspect", MODEL, "--tensors"), (BIN + "/helm-inspect", MODEL, "--json"),
                (BIN + "/helm-plan", "--model", MODEL, "--profile", PROFILE),
                (BIN + "/helm-quantize", "--model", MODEL, "--to", "q8_0", "--out", folder + "/pipe.gguf")]
    for command in outputs:
        said = [unread(*command), unread(*command, ignored=True)]
        check("%s | head ends in silence" % " ".join(os.path.basename(w) for w in command[:3]),
              [s[0] for s in said] == ["", ""] and all(s[1] in (0, 5, -signal.SIGPIPE) for s in said), said)
    daemon.stop()
    check("... and leaves no half of a file", not [n for n in os.listdir(folder) if n.startswith("pipe.gguf")], os.listdir(folder))


if __name__ == "__main__":
    run_in_folder(help_tests, pipe_tests)
