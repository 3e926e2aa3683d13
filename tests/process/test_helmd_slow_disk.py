#!/usr/bin/python3
"""Weights on a disk that is slow, or goes away (slow_disk.c, preloaded): a tiny mixture with experts in VRAM, in slots and on disk, and a
dense model with half layers there, on the CPU and the emulated device; the rate that helmd measures; reads that fail for a while, after
which no token is another, and for good."""
import json
import os
import re
import signal
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import processor  # noqa: E402
from helmd_harness import BIN, PROFILE, TEST_BIN, Client, check, plan_json, run_tests, running, same, wait_until, SLOW  # noqa: E402
from test_helmd_disk import CONFIG, MIXTRAL, PROMPTS, answers, status  # noqa: E402
from test_helmd_disk_layers import QWEN, plan_of  # noqa: E402

COUNT = 24  # tokens of an answer


def disk(rate=None, gone=None):
    """The environment of helmd with such a disk."""
    env = {"LD_PRELOAD": os.path.join(TEST_BIN, "slow_disk.so")}
    return {**env, **({"SLOW_DISK_RATE": str(rate)} if rate else {}), **({"SLOW_DISK_GONE": gone} if gone else {})}


def test_three_levels_with_a_throttled_file():
    """The tokens of plans with all in memory, no sooner than the disk gives the bytes that were read."""
    rate = 100e6
    with tempfile.TemporaryDirectory(prefix="helmd-disk-", dir=os.path.dirname(BIN)) as base:
        with open(base + "/config.json", "w") as f:
            json.dump(CONFIG, f)
        run = processor.run([os.path.join(BIN, "helm-mkmodel"), "--config", base + "/config.json", "--out", base + "/model"], capture_output=True, timeout=60 * SLOW)
        same(run.returncode, 0, run.stderr)
        options = ["--ctx", 512, "--parallel", 4, "--step-tokens", 64]
        for homes, ends, device in (("gggdgdgdggcc", "g", ["--device", "emulated", "--vram", "64M"]), ("cccdcdcdcdcc", "c", ["--device", "cpu"])):
            memory = plan_json(6, homes.replace("d", "c"), ends, ends, slots=4)
            with running(*options, *device, real=True, model=base + "/model", plan=memory) as d:
                wanted = answers(d)
            plan = plan_json(6, homes, ends, ends, disk_slots=10, slots=4)
            with running(*options, *device, real=True, model=base + "/model", plan=plan, env=disk(rate)) as d:
                begin = time.monotonic()
                same(answers(d), wanted, f"{homes}: tokens")
                seconds = time.monotonic() - begin
                check("weights on disk are read by 32 threads: io_uring: " in d.log(), d.log()[-3000:])
                seen = status(d)
                check(0 < seen["experts_present_total"] < seen["experts_used_total"], seen)
                d.stop()
                read = re.search(r"uses were in memory; ([0-9.]+) MiB were read", d.log())
                check(read and seconds > float(read.group(1)) * (1 << 20) / rate, f"{seconds} s; {d.log()[-500:]}")


def test_half_layers_of_a_throttled_file():
    """Likewise of a dense model, from the daemon's start on: the ring is filled before the first step."""
    rate = 100e6
    options = ["--ctx", 512, "--parallel", 4, "--step-tokens", 64]
    for homes, ends, device in (("gd", "g", ["--device", "emulated", "--vram", "64M"]), ("cd", "c", ["--device", "cpu"])):
        with running(*options, *device, real=True, model=QWEN, plan=plan_of(QWEN, homes, ends, 0, invariant=True)) as d:
            wanted = answers(d)
        begin = time.monotonic()
        with running(*options, *device, real=True, model=QWEN, plan=plan_of(QWEN, homes, ends, invariant=True), env=disk(rate)) as d:
            same(answers(d), wanted, f"{homes}: tokens")
            check("weights on disk are read by 32 threads: io_uring: " in d.log(), d.log()[-3000:])
            d.stop()
            seconds = time.monotonic() - begin
            read = re.search(r"weights on disk: ([0-9.]+) MiB were read", d.log())
            check(read and float(read.group(1)) > 50 and seconds > (float(read.group(1)) - 2) * (1 << 20) / rate, f"{seconds} s; {d.log()[-500:]}")


def test_the_rate_is_measured():
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(plan_json(2, "cdcd", "c", "c", disk_slots=2, slots=4), f)
        f.flush()
        run = processor.run([os.path.join(BIN, "helm-plan"), "--model", MIXTRAL, "--plan", f.name, "--profile", PROFILE], capture_output=True,
                            timeout=60 * SLOW, env={**os.environ, **disk(500e6)})
    rate = re.search(rb"read at ([0-9.]+) GB/s", run.stdout)
    check(rate and 0.3 < float(rate.group(1)) < 0.55, run.stdout + run.stderr)


def pulled(d, gone, more, stream, c):
    """The disk is away from now on, until `more` says enough; the log since then."""
    before = len(d.log())
    while len(stream.tokens) < 3:
        c.receive(30)
    with open(gone, "w"):
        pass
    check(wait_until(lambda: more(d.log()[before:]), 60), d.log()[-2000:])
    return d.log()[before:]


def test_a_disk_that_comes_back_costs_no_token():
    """A file on a disk that is away for two deaths of the worker: each names the file, and then all goes on."""
    device = ["--ctx", 512, "--parallel", 4, "--step-tokens", 64, "--device", "emulated", "--vram", "64M"]
    for model, memory, plan, name in (
            (MIXTRAL, plan_json(2, "gcgg", "g", "g", slots=4), plan_json(2, "gdgg", "g", "g", disk_slots=1, slots=4), "expert [0-9]+ of .*"),
            (QWEN, plan_of(QWEN, "gcgd", "g", 0, invariant=True), plan_of(QWEN, "gcgd", "g", invariant=True), "model.layers.*_proj.weight")):
        with running(*device, real=True, model=model, plan=memory) as d:
            wanted = answers(d, PROMPTS[:1])[0]
        with tempfile.TemporaryDirectory() as folder:
            gone = folder + "/gone"
            with running(*device, real=True, model=model, plan=plan, env=disk(20e6, gone)) as d:
                c = Client(d.endpoint)
                stream = c.generate(PROMPTS[0], COUNT, ignore_eos=True)
                log = pulled(d, gone, lambda log: log.count(" cannot be read (") >= 2, stream, c)
                check(re.search(r"model.safetensors: byte [0-9]+ cannot be read \(" + name + r"\): Input/output error", log), log[-2000:])
                os.unlink(gone)
                c.run(stream, timeout=60 * SLOW)
                check(stream.done and not stream.error, f"{stream.error or stream.done}")
                same(list(stream.tokens), wanted, "tokens")


def test_a_disk_that_stays_away_ends_it():
    for model, plan in ((MIXTRAL, plan_json(2, "cdcd", "c", "c", disk_slots=1, slots=4)), (QWEN, plan_of(QWEN, "cccd"))):
        with tempfile.TemporaryDirectory() as folder:
            gone = folder + "/gone"
            with running("--ctx", 512, "--parallel", 4, "--step-tokens", 64, "--device", "cpu", "--restart-limit", 2, real=True, model=model,
                         plan=plan, env=disk(20e6, gone)) as d:
                c = Client(d.endpoint)
                stream = c.generate(PROMPTS[0], COUNT, ignore_eos=True)
                pulled(d, gone, lambda log: " cannot be read (" in log, stream, c)
                c.run(stream, timeout=60 * SLOW)
                check(stream.done or stream.error, "no word")
                check("cannot be read" in str(stream.error or stream.done), str(stream.error or stream.done))
                same(processor.ended(d.process, 60 * SLOW), 5, f"exit status: {d.log()[-800:]}")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    run_tests(globals())
