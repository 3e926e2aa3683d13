#!/usr/bin/python3
"""A checkpoint that changes on disk under a running daemon: what is loaded again after a worker's death is what was loaded,
or helmd says so and ends. Real workers on a copy of the demo model."""
import json
import os
import shutil
import signal
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import processor  # noqa: E402
from helmd_harness import DEMO, Client, check, plan_json, run_tests, running, same, wait_until, SLOW  # noqa: E402

SIZES = ["--ctx", 256, "--parallel", 2, "--step-tokens", 32]
ANSWER = 240  # tokens: long enough that a worker is killed in the middle also where the test waits for a processor
PAIR = ["--device", "emulated", *SIZES]
PLAN = plan_json(8, "ggggcccc", "c", "c", context_tokens=256, slots=2)
PACKED = plan_json(8, "ggggcccc", "c", "c", context_tokens=256, slots=2, packed="g")


class copied:
    """with copied() as folder: ... ; the demo model, to be spoiled."""

    def __enter__(self):
        self.base = tempfile.mkdtemp(prefix="helmd-test-")
        shutil.copytree(DEMO, self.base + "/model", ignore=shutil.ignore_patterns("golden*"))
        return self.base + "/model"

    def __exit__(self, *_):
        shutil.rmtree(self.base)


def weights_of(folder):
    return next(os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".safetensors"))


def tensor_at(path, name):
    """Where in the file a tensor's bytes begin."""
    with open(path, "rb") as f:
        length = int.from_bytes(f.read(8), "little")
        return 8 + length + json.loads(f.read(length))[name]["data_offsets"][0]


def overwrite(path, at, keep_time=True):
    """A few bytes; the time of writing set back."""
    st = os.stat(path)
    with open(path, "r+b") as f:
        f.seek(at)
        old = f.read(64)
        f.seek(at)
        f.write(bytes(b ^ 1 if n % 2 == 0 else b for n, b in enumerate(old)))
    if keep_time:
        os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))


def kill_worker(d, c):
    """In the middle of a request, whose stream is given back."""
    stream = c.generate([5, 6, 7], ANSWER, ignore_eos=True)
    while len(stream.tokens) < 3:
        c.receive(30)
    os.kill(d.children()["worker"], signal.SIGKILL)
    return stream


def ends_with(change, reason, options=PAIR, plan=PLAN):
    with copied() as folder, running(*options, real=True, model=folder, plan=plan) as d:
        c = Client(d.endpoint)
        change(folder)
        stream = kill_worker(d, c)
        c.run(stream, timeout=60)
        check(stream.done and reason in stream.done.detail, f"{stream.error or stream.done}")
        same(processor.ended(d.process, 30 * SLOW), 5, f"exit status: {d.log()[-800:]}")
        check(f"giving up: " in d.log() and reason in d.log(), d.log()[-800:])


def test_weights_that_were_overwritten_end_it_whatever_their_time_says():
    name = "model.layers.1.mlp.up_proj.weight"
    for plan in (PLAN, PACKED):
        ends_with(lambda folder: overwrite(weights_of(folder), tensor_at(weights_of(folder), name)),
                  "the model changed on disk while it was served (", plan=plan)


def test_a_norm_that_was_overwritten_ends_it_on_the_cpu_alone():
    ends_with(lambda folder: overwrite(weights_of(folder), tensor_at(weights_of(folder), "model.norm.weight")),
              ".safetensors was changed)", options=["--device", "cpu", *SIZES], plan=None)


def test_numbers_of_the_configuration_that_change_end_it():
    def change(folder):
        path = os.path.join(folder, "config.json")
        with open(path) as f:
            config = json.load(f)
        config["rms_norm_eps"] = config["rms_norm_eps"] * 10
        with open(path, "w") as f:
            json.dump(config, f)

    ends_with(change, "config.json", options=["--device", "cpu", *SIZES], plan=None)


def test_weights_that_were_cut_or_removed_end_it_with_their_name():
    ends_with(lambda folder: os.truncate(weights_of(folder), os.path.getsize(weights_of(folder)) - 4096), ".safetensors")
    ends_with(lambda folder: os.remove(weights_of(folder)), ".safetensors")


def test_the_same_weights_under_another_time_cost_nothing():
    with copied() as folder, running(*PAIR, real=True, model=folder, plan=PLAN) as d:
        c = Client(d.endpoint)
        want = c.generate([5, 6, 7], ANSWER, ignore_eos=True)
        c.run(want, timeout=60)
        path = weights_of(folder)
        shutil.copy(path, path + ".new")
        os.replace(path + ".new", path)  # another file, written now
        stream = kill_worker(d, c)
        c.run(stream, timeout=60)
        same(stream.tokens, want.tokens, "tokens")
        wait_until(lambda: c.ask("status").status.state == "ready", 20)
        check("giving up" not in d.log(), d.log()[-800:])


if __name__ == "__main__":
    run_tests(globals())
