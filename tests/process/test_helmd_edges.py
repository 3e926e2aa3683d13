#!/usr/bin/python3
"""helmd at the edges of its surroundings: descriptors, limits, signals, a run directory that goes away, hostile names."""
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import processor  # noqa: E402
from helmd_harness import (BIN, DEMO, PROFILE, Client, Daemon, check, expected_tokens, run_tests, running, same,  # noqa: E402
                           wait_until, write_checkpoint, SLOW)

SANITIZED = SLOW > 1  # address space is not ours to bound there


def refuse(**limit):
    """helmd started under a resource limit: its exit status, its log and the seconds it took."""
    (name, value), = limit.items()
    number = getattr(resource, "RLIMIT_" + name.upper())

    def bound():
        resource.setrlimit(number, (value, resource.getrlimit(number)[1]))

    with tempfile.TemporaryDirectory(prefix="helmd-test-") as base:
        begun = processor.clock()
        ended = processor.run([os.path.join(BIN, "helmd"), "--model", DEMO, "--rundir", base + "/run", "--profile", PROFILE],
                               stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, preexec_fn=bound)
        return ended.returncode, ended.stderr.strip().split("\n")[-1], processor.clock() - begun


def test_limits_that_are_too_low_are_named_at_once():
    cases = [("nofile", 20, "open files is 20; at least 64 are needed (ulimit -n)"),
             ("stack", 64 << 10, "stack size is 64.00 KiB; at least 1.00 MiB are needed (ulimit -s)"),
             ("fsize", 1 << 20, "File too large")]
    if not SANITIZED:
        cases += [("as", 300 << 20, "address space is 300.00 MiB; at least 512.00 MiB are needed (ulimit -v)"),
                  ("as", 560 << 20, "weights and caches in host memory: the limit of address space is 560.00 MiB"),
                  ("data", 100 << 20, "data size is 100.00 MiB; at least 512.00 MiB are needed (ulimit -d)")]
    for name, value, text in cases:
        status, line, seconds = refuse(**{name: value})
        same(status, 4, f"{name}: exit status ({line})")
        check(text in line, f"{name}: {line}")
        check(seconds < 10 * SLOW, f"{name}: took {seconds:.1f} s")


def test_closed_standard_descriptors_are_no_harm():
    base = tempfile.mkdtemp(prefix="helmd-test-")
    endpoint = f"ipc://{base}/run/helmd.sock"
    shell = 'exec "$@" 0<&- 1>&- 2>&-'
    command = [os.path.join(BIN, "helmd"), "--model", DEMO, "--rundir", base + "/run", "--profile", PROFILE, "--device", "cpu"]
    process = subprocess.Popen(["sh", "-c", shell, "sh"] + command)
    try:
        wait_until(lambda: os.path.exists(base + "/run/helmd.sock"), 20 * SLOW)
        c = Client(endpoint)
        wait_until(lambda: c.ask("status").status.state == "ready", 20 * SLOW)
        stream = c.generate([5, 6, 7], 8)
        c.run(stream)
        same(len(stream.tokens), 8, "tokens")
        for fd in (0, 1, 2):
            same(os.readlink(f"/proc/{process.pid}/fd/{fd}"), "/dev/null", f"descriptor {fd}")
        process.terminate()
        same(processor.ended(process, 20), 0, "exit status")
    finally:
        process.kill()
        shutil.rmtree(base, ignore_errors=True)


def test_threads_of_openblas_are_the_users_or_one():
    for given, seen in (({}, "1"), ({"OPENBLAS_NUM_THREADS": "3"}, "3")):
        with running("--device", "cpu", env=given) as d:
            with open(f"/proc/{d.children()['cpu']}/environ") as f:
                same([v for v in f.read().split("\0") if v.startswith("OPENBLAS_NUM_")], ["OPENBLAS_NUM_THREADS=" + seen], "the worker's")
            same("OPENBLAS_NUM_THREADS=3: workers start with so many threads" in d.log(), seen == "3", d.log())


def test_a_full_pipe_that_nobody_reads_stops_nothing():
    base = tempfile.mkdtemp(prefix="helmd-test-")
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    try:
        while True:
            os.write(write_end, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(write_end, True)
    command = [os.path.join(BIN, "helmd"), "--model", DEMO, "--rundir", base + "/run", "--profile", PROFILE, "--device", "cpu",
               "--log-level", "debug"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=write_end)
    os.close(write_end)
    try:
        wait_until(lambda: os.path.exists(base + "/run/helmd.sock"), 20 * SLOW)
        c = Client(f"ipc://{base}/run/helmd.sock")
        wait_until(lambda: c.ask("status").status.state == "ready", 20 * SLOW)
        worker = c.ask("status").status.workers[0].pid
        os.kill(worker, signal.SIGKILL)  # its death is worth several lines
        stream = c.generate([5, 6, 7], 8)
        c.run(stream)
        same(len(stream.tokens), 8, "tokens after a worker's death")
        text = b""
        while b"dropped" not in text:  # as soon as the pipe is read
            text = (text + os.read(read_end, 1 << 16))[-(1 << 17):]
            os.kill(process.pid, signal.SIGHUP)  # a line
        check(b" log lines were dropped: standard error took none" in text, "dropped lines are not counted")
        process.terminate()
        same(processor.ended(process, 20), 0, "exit status")
    finally:
        process.kill()
        os.close(read_end)
        shutil.rmtree(base, ignore_errors=True)


def test_signals_without_meaning_end_nothing():
    with running(faults="step_us=2000") as d:
        c = Client(d.endpoint)
        stream = c.generate([5, 6, 7], 60)
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGXFSZ,
                       signal.SIGPIPE):
            os.kill(d.pid, number)
        c.run(stream)
        same(stream.tokens, expected_tokens([5, 6, 7], 60), "tokens")
        same(d.process.poll(), None, "helmd ended")


def test_hangup_reads_the_configuration_again():
    with tempfile.NamedTemporaryFile("w", suffix=".ini") as file:
        file.write("log-level = debug\n")
        file.flush()
        # the command line of the harness says debug as well: it wins, so the file is what is wrong or right here
        with running("--config", file.name, faults="step_us=2000") as d:
            c = Client(d.endpoint)
            stream = c.generate([5, 6, 7], 100)
            os.kill(d.pid, signal.SIGHUP)
            wait_until(lambda: "SIGHUP: log level debug" in d.log(), 5)
            file.write("log-level = loud\n")
            file.flush()
            os.kill(d.pid, signal.SIGHUP)
            wait_until(lambda: "SIGHUP: nothing is changed" in d.log(), 5)
            c.run(stream)
            same(stream.tokens, expected_tokens([5, 6, 7], 100), "tokens")


def test_a_run_directory_that_is_removed_ends_it_at_the_next_death():
    with running() as d:
        shutil.rmtree(d.rundir)
        begun = processor.clock()
        os.kill(d.children()["worker"], signal.SIGKILL)
        same(processor.ended(d.process, 20), 5, "exit status")
        check(processor.clock() - begun < 5 * SLOW, f"it took {processor.clock() - begun:.1f} s")
        check("was removed: no worker can be started" in d.log(), d.log()[-500:])


def test_a_stopped_worker_is_said_to_be_stopped():
    with running() as d:
        c = Client(d.endpoint)
        worker = d.children()["worker"]
        os.kill(worker, signal.SIGSTOP)
        stream = c.generate([5, 6, 7], 20)
        begun = processor.clock()
        check(wait_until(lambda: c.ask("status").status.workers[0].state == "stopped", 5), "status does not say it")
        check(processor.clock() - begun < 4 * SLOW, f"said after {processor.clock() - begun:.1f} s")
        same([e.state for e in c.ask("list").list.entries], ["stalled"], "list")
        check(f"worker cpu (pid {worker}) is stopped, by SIGSTOP or a debugger" in d.log(), d.log()[-500:])
        os.kill(worker, signal.SIGCONT)
        c.run(stream)
        same(stream.tokens, expected_tokens([5, 6, 7], 20), "tokens")
        check(wait_until(lambda: c.ask("status").status.workers[0].state == "ready", 5), "status still says it")
        same(c.ask("status").status.workers[0].restarts, 0, "restarts")


def test_names_in_a_checkpoint_cannot_reach_the_terminal():
    base = tempfile.mkdtemp(prefix="helmd-test-")
    try:
        write_checkpoint(base)
        path = os.path.join(base, "model.safetensors")
        with open(path, "rb") as f:
            length, = struct.unpack("<Q", f.read(8))
            header = json.loads(f.read(length))
            body = f.read()
        header["\x1b]0;owned\x07\u009b2J"] = {"dtype": "BF16", "shape": [0], "data_offsets": [len(body), len(body)]}
        header["model.norm.weight"]["dtype"] = "\x1b[31mF99"
        text = json.dumps(header).encode()
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text + body)
        with open(os.path.join(base, "config.json")) as f:
            config = json.load(f)
        for architecture in (config["architectures"][0], "\x1b[5mBad"):
            with open(os.path.join(base, "config.json"), "w") as f:
                json.dump(dict(config, architectures=[architecture]), f)
            for command in (["helm-inspect", base, "--tensors"], ["helm-plan", "--model", base, "--profile", PROFILE],
                            ["helmd", "--model", base, "--rundir", base + "/run", "--profile", PROFILE]):
                ended = processor.run([os.path.join(BIN, command[0])] + command[1:], stdin=subprocess.DEVNULL,
                                       capture_output=True, timeout=60)
                out = ended.stdout + ended.stderr
                check(ended.returncode != 0 and b"\\x1b" in out, f"{command[0]}: {out[-300:]!r}")
                check(b"\x1b" not in out and b"\x07" not in out and "\u009b".encode() not in out, f"{command[0]}: {out[-300:]!r}")
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    run_tests(globals())
