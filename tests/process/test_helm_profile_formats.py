#!/usr/bin/python3
"""helm-profile --formats and --model, end to end: rates of weight formats of this machine without a device and with the
emulated one, how they come into a cached profile, what is refused. Called by test_helm_profile.py with what it measured;
alone, the rest is measured first.

HELM_BIN: folder of the programs. Run from the repository's root."""
import json
import os
import subprocess
import sys
import tempfile
import time

import processor

BIN = os.path.abspath(os.environ["HELM_BIN"])
SLOW = 4 if "asan" in BIN or "tsan" in BIN or "ubsan" in BIN else 1
CACHES = ["--caches", "20MiB"]  # so that 256 MiB of weights pass them by
CPU = ["--device", "cpu", "--quick", *CACHES]
FEW = [2, 4, 8, 16]
BESIDE = 1 / 8  # of the processors: so much of others' work disturbs what is measured
counts = {True: 0, False: 0, None: 0}
others = processor.Others()
begun = time.monotonic()  # the last measurement


def check(name, ok, detail=""):
    counts[bool(ok)] += 1
    print("%s %s%s" % ("ok  " if ok else "FAIL", name, "" if ok else "  [%s]" % (detail,)), flush=True)


def begin():
    global begun
    begun = time.monotonic()


def is_alone():
    """Whether the last measurement had the processors for itself."""
    return others.most(begun) < BESIDE


def measured(name, ok, detail=""):
    """How values of the last measurement compare. Beside other work they say nothing of the program, and are not compared."""
    if is_alone():
        check(name, ok, detail)
    else:
        counts[None] += 1
        print("%s skipped: other programs ran while it was measured" % name, flush=True)


def sum_up():
    print("%d passed, %d failed, %d skipped" % (counts[True], counts[False], counts[None]))
    sys.exit(counts[False] > 0)


def profile(cache, *args):
    env = dict(os.environ, XDG_CACHE_HOME=cache)
    env.pop("STATE_DIRECTORY", None)
    before = processor.spent_by_children()
    begin()
    run = processor.run([os.path.join(BIN, "helm-profile"), *args, "--json"], 150 * SLOW, stdin=subprocess.DEVNULL,
                        capture_output=True, env=env, text=True)
    return run.returncode, json.loads(run.stdout) if run.returncode == 0 else {}, run.stderr, processor.spent_by_children() - before


def is_value(value):
    return value["source"] in ("measured", "estimate") and 0 < value["low"] <= value["value"] <= value["high"]


def check_cpu(what, p, name):
    rates, linear = p["formats"][name], {point["x"]: point for point in p["cpu"]["linear"]}
    check("%s: %s on the CPU is measured" % (what, name), is_value(rates["cpu_gemv"]), rates)
    # bytes as they are stored: a format is as fast as memory, or its decoder is slower
    measured("%s: and near bf16's bytes a second or below" % what, 0.005 * p["cpu"]["gemv"]["value"] <
             rates["cpu_gemv"]["value"] < 3 * p["cpu"]["read"][-1]["value"], (rates["cpu_gemv"], p["cpu"]["gemv"]))
    tokens = [point["x"] for point in rates["cpu_linear"]]
    check("%s: several tokens, from four on" % what, tokens[:1] == [4] and set(tokens) <= {4, 32, 128}, tokens)
    check("%s: each of which is measured" % what, all(map(is_value, rates["cpu_linear"])), rates)
    bf16 = linear[4]["value"] if 4 in linear else 0  # a busy machine has no time for it
    measured("%s: at rates near bf16's" % what, 0.02 * bf16 < rates["cpu_linear"][0]["value"] < 50 * bf16, (rates, linear))
    int8 = name not in ("f16", "f32") and "avx2" in processor.flags()
    check("%s: %s with int8 activations, where there are kernels" % (what, name), is_value(rates["cpu_int8_gemv"]) == int8 and
          [point["x"] for point in rates["cpu_int8_linear"]] == (tokens if int8 else []), rates)


def first_lines(cache, *args, lines=1, home=None):
    """The first lines that it prints; then it is killed. It leaves weights, so they are put where all is removed. Without a
    cache it has no home either, or the variables in `home`."""
    env = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME", "STATE_DIRECTORY")}
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(
            [os.path.join(BIN, "helm-profile"), *args], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, env=dict(env, TMPDIR=folder, **{"XDG_CACHE_HOME": cache} if cache else home or {})) as run:
        said = "".join(run.stderr.readline() for _ in range(lines))
        run.kill()
        run.wait()
    return said


def test_cpu(cache, before, cpu=tuple(CPU)):
    """A format, or what a model's matrices have, is measured into `before`, the cached profile of options `cpu`, and no more."""
    rc, p, err, took = profile(cache, *cpu, "--formats", "q4_k")
    there = before.get("formats", {})
    check("formats: measured into what there is", rc == 0 and "formats of weights: q4_k\n" in err and "q4_k" not in there and
          {**before, "formats": {**there, "q4_k": p["formats"]["q4_k"]}} == p, err)
    check("formats: and nothing else, in seconds", "loading" not in err and took < 15 * SLOW * p["cpu"]["threads"], (took, err))
    check_cpu("formats", p, "q4_k")
    check("formats: nothing of a device", all(p["formats"]["q4_k"][m] == [] or p["formats"]["q4_k"][m]["source"] == "unknown"
                                              for m in p["formats"]["q4_k"] if m.startswith("gpu") or m.endswith("beside")), p)
    rc, again, err, _ = profile(cache, *cpu, "--formats", "q4_k")
    check("formats: kept, and the second time they are cached", rc == 0 and again == p and "formats of weights" not in err, err)
    with tempfile.TemporaryDirectory() as folder:
        models = {}
        for dtype in "bfloat16", "float16":
            models[dtype] = os.path.join(folder, dtype)
            os.mkdir(models[dtype])
            with open("tests/data/golden/qwen3/config.json") as f, open(os.path.join(models[dtype], "config.json"), "w") as g:
                json.dump(dict(json.load(f), dtype=dtype), g)
        rc, again, err, _ = profile(cache, *cpu, "--model", models["bfloat16"])
        check("model: of bf16 no formats", rc == 0 and again == p and "formats of weights" not in err, (rc, err))
        check("model: its own programs are measured", "the model's programs: 3 kinds in" in err and "programs-" in err, err)
        rc, again, err, _ = profile(cache, *cpu, "--model", models["bfloat16"])
        check("model: once", rc == 0 and "the model's programs: cached: " in err, (rc, err))
        said = first_lines(cache, *cpu, "--model", models["float16"], lines=2)  # of the cache, and of what is not in it
        check("model: what it has is measured", "formats of weights: f16\n" in said, said)


def test_emulated(cache, *options):
    args = ["--device", "emulated", "--quick", *CACHES, *options, "--formats", "q6_k,f16"]
    rc, p, err, _ = profile(cache, *args)
    check("emulated: measured", rc == 0 and list(p["formats"]) == ["f16", "q6_k"], (rc, err))
    for name in ("q6_k", "f16"):
        check_cpu("emulated", p, name)
        rates = p["formats"][name]
        check("emulated: %s beside copies too" % name, is_value(rates["cpu_gemv_beside"]), rates)
        measured("emulated: %s is no faster there" % name, rates["cpu_gemv_beside"]["value"] <= 3 * rates["cpu_gemv"]["value"], rates)
        check("emulated: %s on the device" % name, is_value(rates["gpu_gemv"]) and is_value(rates["gpu_operation"]), rates)
        check("emulated: %s of few tokens" % name, [point["x"] for point in rates["gpu_linear"]] == FEW + ([32] if name == "q6_k" else []) and
              all(is_value(point) for point in rates["gpu_linear"]), rates)
        check("emulated: blocks are expanded, numbers are not", is_value(rates["gpu_expand"]) == (name == "q6_k"), rates)


def test_refusals(cache):
    for args, said in ((["--formats", "bf16"], "bf16"), (["--formats", "q9_x"], "'q9_x' is none of"),
                       (["--formats", "bf16-packed"], "bf16-packed")):
        rc, _, err, _ = profile(cache, *CPU, *args)
        check("refused: " + " ".join(args), rc == 2 and said in err, (rc, err))
    rc, _, err, _ = profile(cache, *CPU, "--model", "/nonexistent")
    check("refused: a model that is none", rc == 1 and "--model" in err and "/nonexistent" in err, (rc, err))


def test_worker():
    def worker(lines):
        run = processor.run([os.path.join(BIN, "helm-worker-gpu"), "--measure", "emulated", "--quick"], 120 * SLOW,
                            input=lines, capture_output=True, text=True)
        return run.returncode, [json.loads(line) for line in run.stdout.splitlines()]
    rc, answers = worker("format q8_0 0.3\nquit\n")
    names = {a.get("name") for a in answers[1:]} - {None}
    check("worker: a format's values have its name", rc == 0 and answers[-1] == {"done": "format q8_0 0.3"} and
          {"formats.q8_0.gpu_gemv", "formats.q8_0.gpu_expand"} <= names and
          all(name.startswith("formats.q8_0.gpu_") for name in names), (rc, names))
    for line, said in (("format bf16 1\n", "bf16"), ("format q8_0\n", "seconds"), ("format q8_0 0\n", "seconds"),
                       ("stream\nformat q8_0 1\n", "flowing")):
        rc, answers = worker(line)
        check("worker: '%s' is refused" % line.strip().replace("\n", ", "), rc == 5 and said in answers[-1]["error"], answers)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache_folder:
        test_worker()
        test_cpu(cache_folder, profile(cache_folder, *CPU)[1])
        test_refusals(cache_folder)
        test_emulated(cache_folder)
    sum_up()
