#!/usr/bin/python3
"""Experts on disk through helmd and its CPU worker: the tokens of plans that have all in memory, from safetensors and from
blocks of a GGUF file, for several sequences at once, with a worker that is killed midway, in an invariant plan too; what is counted; a
plan that helmd makes for less memory than the model needs; a file that changes under the daemon."""
import json
import os
import shutil
import signal
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import processor  # noqa: E402
from helmd_harness import BIN, DATA, PROFILE, Client, check, plan_json, run_tests, running, same, wait_until, SLOW  # noqa: E402

MIXTRAL = os.path.join(DATA, "golden", "mixtral")  # two sparse layers of 8 experts, 2 a token
LAYERS, EXPERTS, CHOSEN = 2, 8, 2
SIZES = ["--device", "cpu", "--ctx", 512, "--parallel", 4, "--step-tokens", 64]
PROMPTS = [[5, 6, 7], [(7 * i * i + 3) % 1000 for i in range(150)], [900 - i for i in range(70)]]
COUNT = 24


def disk_plan(slots, **more):
    return plan_json(LAYERS, "cdcd", "c", "c", disk_slots=slots, slots=4, **more)


def answers(d, prompts=PROMPTS, kill=False):
    """Tokens of the prompts, all at once."""
    c = Client(d.endpoint)
    streams = [c.generate(p, COUNT, ignore_eos=True) for p in prompts]
    if kill:
        while len(streams[0].tokens) < 3:
            c.receive(30)
        os.kill(d.children()["worker"], signal.SIGKILL)
    for s in streams:
        c.run(s, timeout=60 * SLOW)
        check(s.done and not s.error, f"{s.error or s.done}")
    return [list(s.tokens) for s in streams]


def status(d):
    run = processor.run([os.path.join(BIN, "helm-cli"), "--connect", d.endpoint, "status", "--json"], capture_output=True, timeout=60 * SLOW)
    return json.loads(run.stdout)


class copied:
    """with copied() as folder: ... ; the model, to be spoiled. Not in a folder in memory, which cannot be read past the page cache."""

    def __enter__(self):
        self.base = tempfile.mkdtemp(prefix="helmd-disk-", dir=os.path.dirname(BIN))
        shutil.copytree(MIXTRAL, self.base + "/model", ignore=shutil.ignore_patterns("golden*"))
        return self.base + "/model"

    def __exit__(self, *_):
        shutil.rmtree(self.base)


def test_tokens_are_those_of_experts_in_memory():
    with running(*SIZES, real=True, model=MIXTRAL) as d:
        wanted = answers(d)
    for slots, kill in ((1, True), (3, False)):
        with running(*SIZES, real=True, model=MIXTRAL, plan=disk_plan(slots)) as d:
            same(answers(d, kill=kill), wanted, f"{slots} slots: tokens")
            seen = status(d)
            used, present = seen["experts_used_total"], seen["experts_present_total"]
            check(0 < present < used, f"{slots} slots: {present} of {used} uses were in memory")
            check(slots < 2 or present > used / EXPERTS, f"{slots} slots: {present} of {used} uses were in memory")


def test_an_invariant_plan_may_have_them():
    with running(*SIZES, "--invariant", "on", real=True, model=MIXTRAL) as d:
        wanted = [answers(d, [p])[0] for p in PROMPTS]
    with running(*SIZES, "--invariant", "on", real=True, model=MIXTRAL, plan=disk_plan(2, invariant=True)) as d:
        same(answers(d), wanted, "tokens of all at once, and of each alone in memory")


def test_blocks_of_a_gguf_file():
    with copied() as folder:
        out = os.path.join(os.path.dirname(folder), "mixtral-Q8_0.gguf")
        run = processor.run([os.path.join(BIN, "helm-quantize"), "--model", folder, "--to", "Q8_0", "--out", out], capture_output=True, timeout=60 * SLOW)
        same(run.returncode, 0, run.stderr)
        with running(*SIZES, real=True, model=out) as d:
            wanted = answers(d)
        with running(*SIZES, real=True, model=out, plan=disk_plan(2)) as d:
            same(answers(d), wanted, "tokens")


def test_what_would_be_converted_is_refused():
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(dict(disk_plan(2), weights="q8_0"), f)
        f.flush()
        run = processor.run([os.path.join(BIN, "helm-plan"), "--model", MIXTRAL, "--plan", f.name, "--disk-rate", "1G", "--profile", PROFILE],
                            capture_output=True, timeout=60 * SLOW)
    check(run.returncode and b"experts on disk are read as the file has them, not converted to q8_0" in run.stderr, run.stderr)


def spoiled(change, reason):
    with copied() as folder, running(*SIZES, real=True, model=folder, plan=disk_plan(1)) as d:
        c = Client(d.endpoint)
        stream = c.generate([5, 6, 7], 200, ignore_eos=True)
        while len(stream.tokens) < 3:
            c.receive(30)
        change(os.path.join(folder, "model.safetensors"))
        c.run(stream, timeout=60 * SLOW)
        check(stream.done and reason in stream.done.detail, f"{stream.error or stream.done}")
        same(processor.ended(d.process, 30 * SLOW), 5, f"exit status: {d.log()[-800:]}")
        check("model.safetensors" in d.log(), d.log()[-800:])


def overwrite(path):
    st = os.stat(path)
    with open(path, "r+b") as f:
        for at in range(1 << 20, st.st_size - 1, 64):
            f.seek(at)
            f.write(b"\x3d")
    os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))


def test_a_file_that_changes_ends_it():
    spoiled(overwrite, "model.safetensors")
    spoiled(lambda path: os.truncate(path, 1 << 20), "model.safetensors")


if __name__ == "__main__":
    run_tests(globals())
