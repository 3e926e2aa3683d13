#!/usr/bin/python3
"""A model's own programs on the emulated device, end to end: helm-profile --programs measures each kind of half layer, keeps them,
adds the CPU's to them, measures again what cannot be read; helm-plan prices by them; what helm-worker-gpu --measure refuses.

HELM_BIN: folder of the programs. Run from the repository's root."""
import copy
import json
import os
import shutil
import sys
import tempfile

import processor
from helmd_harness import run_tests

BIN = os.path.abspath(os.environ["HELM_BIN"])
SLOW = 6 if "asan" in BIN or "tsan" in BIN or "ubsan" in BIN else 1
HYBRID, DENSE = "tests/data/golden/qwen35moe", "tests/data/golden/qwen3"
MEASURED = {}
KINDS = {"gated delta net of bf16", "attention of bf16", "MLP of experts of bf16", "head of bf16"}


def check(ok, what):
    if not ok:
        raise AssertionError(what)


class Machine:
    def __init__(self):
        self.base = tempfile.mkdtemp(prefix="helm-test-programs-")
        self.cache = os.path.join(self.base, "cache")

    def model(self, of):
        folder = os.path.join(self.base, os.path.basename(of))
        os.makedirs(folder, exist_ok=True)
        shutil.copy(os.path.join(of, "config.json"), folder)  # that is all it needs
        return folder

    def run(self, program, *args, limit=60):
        env = {k: v for k, v in os.environ.items() if k not in ("HOME", "STATE_DIRECTORY")}
        return processor.run([os.path.join(BIN, program), *args], limit * SLOW, capture_output=True, text=True,
                             env=dict(env, XDG_CACHE_HOME=self.cache))

    def programs(self, model, *more):
        run = self.run("helm-profile", "--programs", "--model", model, "--device", "emulated", *more)
        check(run.returncode == 0, run.stderr)
        return json.loads(run.stdout), run.stderr

    def dense(self):
        """The dense model, and its programs on the device, which the first test that asks measures for all."""
        model = self.model(DENSE)
        if not MEASURED:
            MEASURED.update(self.programs(model, "--on", "device")[0])
        programs = copy.deepcopy(MEASURED)
        os.makedirs(os.path.dirname(self.kept(programs)), exist_ok=True)
        with open(self.kept(programs), "w") as file:
            json.dump(programs, file)
        return model, programs

    def kept(self, programs):
        return os.path.join(self.cache, "helm/profiles", f"programs-{programs['key']}.json")

    def close(self):
        shutil.rmtree(self.base)


def cells_of(programs):
    return {kind["name"]: kind.get("gpu", []) for kind in programs["kinds"]}


def test_each_kind_is_measured_once_and_again_when_it_cannot_be_read(m):
    model = m.model(HYBRID)
    programs, said = m.programs(model, "--on", "device")
    cells = cells_of(programs)
    check(set(cells) == KINDS and "on the device in" in said, said)
    check(programs["gpu"] and programs["gpu_begin"], programs)
    check(not any("exact" in kind for kind in programs["kinds"]), "the CPU's were not asked for")
    check(sum(map(len, cells.values())) >= 3, cells)  # on a busy machine noise hides some
    check(all(0 < cell[3] <= cell[2] <= cell[4] for list in cells.values() for cell in list), cells)
    check(all(cell[1] == 0 for name in cells if "attention" not in name for cell in cells[name]), cells)
    check(all(cell[0] <= 16 for cell in cells["head of bf16"]), "a chunk that goes on has no head")
    check(json.load(open(m.kept(programs))) == programs, "what is kept is what was said")

    again, said = m.programs(model, "--on", "device")
    check(again == programs and "cached" in said, said)
    text = open(m.kept(programs)).read()
    with open(m.kept(programs), "w") as file:
        file.write(text[:len(text) // 2])
    again, said = m.programs(model, "--on", "device")
    check("cannot be used, measuring again" in said and again["gpu"] and again["key"] == programs["key"], said)


def test_the_cpus_are_added_to_the_devices(m):
    model, device = m.dense()
    both, said = m.programs(model)
    check(cells_of(both) == cells_of(device) and "on the device in" not in said, said)
    check(all(kind["exact"] for kind in both["kinds"]), both)
    again, said = m.programs(model, "--on", "device")
    check(again == both and "cached" in said, said)


def test_a_model_that_the_device_has_no_room_or_kernels_for_has_the_cpus(m):
    model = m.model("tests/data/golden/granite")
    programs, said = m.programs(model, "--on", "device")
    check("not on the device:" in said and "not supported by GPU workers" in said, said)
    check(programs["gpu"] and not any(cells_of(programs).values()) and not programs["gpu_begin"], programs)
    _, said = m.programs(model, "--on", "device")
    check("cached" in said, said)


def test_plans_are_priced_by_them(m):
    model, programs = m.dense()
    with open("profiles/h200-sapphire-rapids.json") as file:
        profile = dict(json.load(file), fingerprint=programs["fingerprint"])
    path = os.path.join(m.base, "profile.json")
    with open(path, "w") as file:
        json.dump(profile, file)

    def plan(seconds):
        for kind in programs["kinds"]:
            kind["gpu"] = [[1, 0 if "attention" not in kind["name"] else 256, seconds, seconds * 0.95, seconds * 1.05, 0]] if seconds else []
        programs["gpu_begin"] = []
        with open(m.kept(programs), "w") as file:
            json.dump(programs, file)
        run = m.run("helm-plan", "--model", model, "--profile", path, "--vram", "8GiB", "--strategy", "all-gpu", "--invariant", "off", "--ctx", "512")
        check(run.returncode == 0, run.stderr)
        said = m.run("helm-plan", "--model", model, "--profile", path, "--vram", "8GiB", "--strategy", "all-gpu", "--invariant", "off", "--ctx", "512",
                     "--json")
        return run.stdout, json.loads(said.stdout)["decode_tok_s"]["value"]
    rates, none = plan(0)
    text, some = plan(1e-3)
    _, twice = plan(2e-3)
    check("measured +-5 %" in text and "measured" not in rates, (text, rates))
    # four layers of two halves, and the head, of a millisecond each
    check(none > 2 * some and 105 < some < 112 and 1.9 < some / twice < 2.1, (none, some, twice))


def test_invariance_is_decided_by_them_where_both_ways_were_measured(m):
    model, programs = m.dense()
    with open("profiles/h200-sapphire-rapids.json") as file:
        profile = dict(json.load(file), fingerprint=programs["fingerprint"])
    path = os.path.join(m.base, "profile.json")
    with open(path, "w") as file:
        json.dump(profile, file)

    for name in ("gpu_begin", "gpu_invariant_begin"):  # as long on any machine: next to nothing
        programs[name] = [[n, 0, 1e-9, 1e-9, 1e-9, 0] for n in (1, 16, 512)]

    def decided(times):
        for kind in programs["kinds"]:
            context = 256 if "attention" in kind["name"] else 0
            for way, longer in ("gpu", 1), ("gpu_invariant", times):
                kind[way] = [[n, max(context, n) if context else 0, 1e-3 * longer, 1e-3 * longer, 1e-3 * longer, 0] for n in (1, 16, 512)] if longer else []
        with open(m.kept(programs), "w") as file:
            json.dump(programs, file)
        run = m.run("helm-plan", "--model", model, "--profile", path, "--vram", "8GiB", "--strategy", "all-gpu", "--ctx", "512")
        check(run.returncode == 0, run.stderr)
        return next(line for line in run.stdout.splitlines() if line.startswith("invariant"))
    check("the profile does not say" in decided(0), "rates know nothing of several sequences")
    check("invariant on: by price" in decided(1.01), decided(1.01))
    check("invariant off" in decided(1.5) and "decode would take +5" in decided(1.5), decided(1.5))


def test_what_the_worker_refuses(m):
    model = m.model(DENSE)
    good = {"model": model, "weights": "stored", "kv_dtype": "f16", "invariant": False, "layers": [0, 1], "kinds": [0, 1, 0, 1, 2], "context": 256,
            "step_tokens": 64, "positions": 4096}

    def said(*lines):
        run = processor.run([os.path.join(BIN, "helm-worker-gpu"), "--measure", "emulated", "--quick"], 60 * SLOW, input="\n".join(lines) + "\n",
                            capture_output=True, text=True)
        return [json.loads(line) for line in run.stdout.splitlines()]
    answers = said("programs " + json.dumps(good), "cell 2 256 0.1", "close", "quit")
    names = [a["x"] for a in answers if a.get("name") == "program"]
    check(names == [0, 1, 2, 3, 4, 0] and answers[-1] == {"done": "close"}, answers)
    for lines, word in ((["cell 1 256 0.1"], "'cell' without 'programs'"), (["programs {"], "programs"),
                        (["programs " + json.dumps(dict(good, layers=[9], kinds=[0, 1, 2]))], "no layer 9"),
                        (["programs " + json.dumps(dict(good, kinds=[0, 1]))], "2 kinds of 4 half layers"),
                        (["programs " + json.dumps(dict(good, model="/nonexistent"))], "/nonexistent"),
                        (["programs " + json.dumps(good), "cell 3 256 0.1"], "'cell 3 256 0.1'"),
                        (["programs " + json.dumps(good), "cell 1 512 0.1"], "'cell 1 512 0.1'"),
                        (["programs " + json.dumps(good), "cell 1 256 0"], "'cell 1 256 0'")):
        answers = said(*lines)
        check(word in answers[-1].get("error", ""), (lines, answers[-1]))


def with_machine(test):
    def run():
        machine = Machine()
        try:
            test(machine)
        finally:
            machine.close()
    return run


if __name__ == "__main__":
    run_tests({name: with_machine(test) for name, test in list(globals().items()) if name.startswith("test_")})
